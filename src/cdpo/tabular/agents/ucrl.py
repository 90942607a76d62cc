"""UCRL2 (Jaksch et al., 2010), the tabular form of optimism in the face of uncertainty."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from cdpo.errors import UserError
from cdpo.tabular.agents.base import Belief, Plan, PosteriorAgent
from cdpo.tabular.planning import Known, Model, best_action, noise_floor, one_hot_policy


@dataclass(frozen=True)
class UCRL(PosteriorAgent):
    """Plans on the most favourable model of a confidence set around the empirical one.

    Widths are UCRL2's. The objective is the discounted value, as for every agent here, and the plan is renewed each
    block, as the other posterior agents' is.
    """

    name: ClassVar[str] = "ucrl"

    confidence: float = 0.05
    """Probability that the true model lies outside the confidence sets."""
    width: float = 1.0
    """Scales all confidence widths; 1 is the theory's, which is wide."""

    def __post_init__(self) -> None:
        """Reject settings outside their range."""
        if not 0 < self.confidence < 1:
            raise UserError(f"confidence must be in (0, 1), not {self.confidence:g}")
        if not self.width >= 0:
            raise UserError(f"width must not be negative, not {self.width:g}")

    def improve(self, last: Plan, belief: Belief, key: Array) -> Plan:
        """pi, f = argmax over policies and the models of the confidence set of V_pi^f."""
        posterior, known, _ = belief
        count = posterior.count
        states, actions, _ = count.shape
        visits = jnp.sum(count, axis=-1)
        n = jnp.maximum(visits, 1)
        # UCRL2's logarithms take the time before the block; its first step counts as one.
        time = jnp.maximum(jnp.sum(count), 1)
        low, high = known.reward_range
        reward = jnp.sum(count * posterior.average, axis=-1) / n
        spread = jnp.sqrt(7 * jnp.log(2 * states * actions * time / self.confidence) / (2 * n))
        reward = jnp.where(visits > 0, jnp.minimum(reward + self.width * (high - low) * spread, high), high)
        frequency = jnp.where(visits[..., None] > 0, count / n[..., None], 1 / states)
        distance = self.width * jnp.sqrt(14 * states * jnp.log(2 * actions * time / self.confidence) / n)
        policy, model = extended_value_iteration(frequency, reward, distance, known, last.policy)
        return Plan(policy, policy, model)


def extended_value_iteration(
    transition: Array, reward: Array, distance: Array, known: Known, last: Array, sweeps: int = 1000
) -> tuple[Array, Model]:
    """Optimal policy and model when each row may move by `distance` [S, A] in L1 towards better states."""

    def optimistic(value: Array) -> Array:
        """The rows that maximise the expected value: mass goes to the best state, from the worst ones up."""
        order = jnp.argsort(-value)
        rows = transition[:, :, order]
        rows = rows.at[:, :, 0].set(jnp.minimum(rows[:, :, 0] + distance / 2, 1.0))
        cumulated = jnp.minimum(jnp.cumsum(rows, axis=-1), 1.0)
        kept = jnp.diff(cumulated, axis=-1, prepend=0.0)
        return jnp.zeros_like(kept).at[:, :, order].set(kept)

    def backup(value: Array) -> tuple[Array, Array]:
        rows = optimistic(value)
        return rows, reward + known.discount * jnp.einsum("sat,t->sa", rows, value)

    def sweep(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        value, _, count = carry
        _, q = backup(value)
        new = jnp.where(known.terminal, 0.0, jnp.max(jnp.where(known.allowed, q, -jnp.inf), axis=-1))
        return new, jnp.max(jnp.abs(new - value)), count + 1

    # From above: the largest value anything can have, so that every sweep is still optimistic.
    top = jnp.maximum(known.reward_range[1], 0.0) / (1 - known.discount)
    start = (jnp.where(known.terminal, 0.0, top), jnp.array(jnp.inf), jnp.array(0))
    tolerance = noise_floor(top)
    value, _, _ = jax.lax.while_loop(lambda c: (c[1] > tolerance) & (c[2] < sweeps), sweep, start)
    rows, q = backup(value)
    kept = best_action(last, known.allowed)
    better = best_action(q, known.allowed)
    gain = jnp.max(jnp.where(known.allowed, q, -jnp.inf), axis=-1) - jnp.take_along_axis(q, kept[:, None], 1)[:, 0]
    policy = one_hot_policy(jnp.where(gain > 10 * noise_floor(q), better, kept), known.allowed)
    return policy, Model(jnp.where(known.terminal, 0.0, rows), reward)
