"""The trust region around a policy, and linear programs over it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cdpo.tabular.planning import Known, best_action, noise_floor, one_hot_policy


class Trust(NamedTuple):
    """Policies within a total variation of `bound` around the policy that is being solved from.

    `cost` [S] is the weight of each state in the expected total variation, sum_s cost(s) TV(s) <= bound; without it
    the bound holds at every state by itself. `weight` [S] is the weight of each state in the objective.
    """

    bound: Array | float
    cost: Array | None
    weight: Array | None = None


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
