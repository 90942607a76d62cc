"""`solve(policy, models, objective)`: the paper's MBPO(pi, {f}, J) by policy iteration.

Every framework of the paper is a choice of models and of updates with this one function; see `cdpo.tabular.agents`.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cdpo.tabular.planning import (
    Known,
    Model,
    action_values,
    best_action,
    evaluate,
    noise_floor,
    one_hot_policy,
    policy_iteration,
)

_MOST_SWEEPS = 20


class Trust(NamedTuple):
    """Policies within a total variation of `bound` around the policy that is being solved from.

    `cost` [S] is the weight of each state in the expected total variation, sum_s cost(s) TV(s) <= bound; without it
    the bound holds at every state by itself. `weight` [S] is the weight of each state in the objective.
    """

    bound: Array | float
    cost: Array | None
    weight: Array | None = None


@dataclass(frozen=True)
class Aggregation:
    """How the values under several models become one value."""

    kind: Literal["mean", "quantile"] = "mean"
    level: float = 0.9

    def __call__(self, values: Array) -> Array:
        """Reduce the leading axis."""
        if self.kind == "mean":
            return jnp.mean(values, axis=0)
        return jnp.quantile(values, self.level, axis=0)


def solve(
    policy: Array,
    models: Model,
    known: Known,
    *,
    value: Literal["optimal", "policy"] = "optimal",
    aggregation: Aggregation = Aggregation(),
    trust: Trust | None = None,
) -> Array:
    """The policy [S, A] that is best on a model, or on a set of models (leading axis), within the trust region.

    Value "optimal" aggregates each model's own Q*, as the paper's tabular appendix has it; "policy" seeks the one
    policy whose value, aggregated over the models, is largest, as its main equation has it.
    """
    if models.reward.ndim == 2:
        models = jax.tree.map(lambda x: x[None], models)
    if value == "optimal":
        q = jax.vmap(lambda model: policy_iteration(model, known, policy)[1])(models)
        return constrained_argmax(aggregation(q), policy, known, trust)
    return _best_common_policy(policy, models, known, aggregation, trust)


def constrained_argmax(q: Array, policy: Array, known: Known, trust: Trust | None) -> Array:
    """Maximise sum_s weight(s) Q(s, pi) over the trust region around `policy`; a fractional knapsack.

    Moving mass from action b to the best action of state s gains Q(s, best) - Q(s, b) for each unit and costs
    cost(s): the budget goes to the largest gain per cost first, which solves the linear program exactly. Mass is
    moved only for gains above the noise. Without a trust region the result is deterministic, and among equals
    the policy's most likely action stays.
    """
    if trust is None:
        policy = one_hot_policy(best_action(policy, known.allowed), known.allowed)
    best = one_hot_policy(best_action(q, known.allowed), known.allowed)
    gain = jnp.sum(best * q, axis=-1, keepdims=True) - q
    worthwhile = (policy > 0) & (gain > noise_floor(q))
    if trust is None:
        taken = jnp.ones_like(q)
    elif trust.cost is None:
        ratio = jnp.where(worthwhile, gain, 0.0)
        taken = jax.vmap(_fill, in_axes=(0, 0, None))(ratio, policy, trust.bound)
    else:
        cost = jnp.broadcast_to(trust.cost[:, None], q.shape)
        # Changes where the policy never goes are free: the smallest normal number stands for zero cost.
        worth = gain if trust.weight is None else gain * trust.weight[:, None]
        ratio = jnp.where(worthwhile, worth / jnp.maximum(cost, jnp.finfo(q.dtype).tiny), 0.0)
        taken = _fill(ratio.ravel(), (cost * policy).ravel(), trust.bound).reshape(q.shape)
    moved = jnp.where(worthwhile, policy * taken, 0.0)
    return policy - moved + best * jnp.sum(moved, axis=-1, keepdims=True)


def _fill(ratio: Array, cost: Array, budget: Array | float) -> Array:
    """Fraction of each item that is taken when items are taken by falling ratio until the budget is spent."""
    order = jnp.argsort(-ratio)
    price = cost[order]
    before = jnp.cumsum(price) - price
    fraction = jnp.where(price > 0, jnp.clip((budget - before) / jnp.where(price > 0, price, 1.0), 0, 1), 1.0)
    return jnp.zeros_like(ratio).at[order].set(fraction)


def _best_common_policy(
    policy: Array, models: Model, known: Known, aggregation: Aggregation, trust: Trust | None
) -> Array:
    """Policy iteration on the aggregated Q of one common policy, kept while its value from the start rises."""

    def values(candidate: Array) -> tuple[Array, Array]:
        v = jax.vmap(evaluate, in_axes=(0, None, None))(models, candidate, known.discount)
        q = jax.vmap(action_values, in_axes=(0, 0, None))(models, v, known.discount)
        return aggregation(q), aggregation(v @ known.start)

    def improve(carry: tuple[Array, Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array, Array]:
        kept, q, score, _, sweep = carry
        candidate = constrained_argmax(q, policy, known, trust)
        candidate_q, candidate_score = values(candidate)
        better = candidate_score > score + noise_floor(score)
        pick = lambda new, old: jnp.where(better, new, old)  # noqa: E731
        return pick(candidate, kept), pick(candidate_q, q), pick(candidate_score, score), better, sweep + 1

    q, score = values(policy)
    start = (policy, q, score, jnp.array(True), jnp.array(0))
    return jax.lax.while_loop(lambda c: c[3] & (c[4] < _MOST_SWEEPS), improve, start)[0]
