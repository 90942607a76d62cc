"""UCRL2 (Jaksch et al., 2010), the tabular form of optimism in the face of uncertainty.

UCRL2 is told that rewards lie in [0, 1]. Here they are Gaussian, and nobody tells their range. So the widths of
transitions are UCRL2's, and those of rewards are Student's: of the rewards of one (s, a, s'), which are Gaussian, while
those of one (s, a) are a mixture of Gaussians, for which no width would hold.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from cdpo.errors import UserError
from cdpo.tabular.agents.base import Belief, Plan, PosteriorAgent
from cdpo.tabular.planning import Known, Model, best_action, noise_floor, one_hot_policy
from cdpo.tabular.posterior import Posterior

_FEW = 10  # rewards: of fewer, the quantiles of Student's t at the levels needed here are far out


@dataclass(frozen=True)
class UCRL(PosteriorAgent):
    """Plans on the most favourable model of a confidence set around the empirical one.

    The objective is the discounted value, as for every agent here, and the plan is renewed each block, as the other
    posterior agents' is.
    """

    name: ClassVar[str] = "ucrl"

    confidence: float = 0.05
    """At most so likely is the true model outside of the confidence sets; for rewards seen fewer than ten times by the
    prior."""
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
        # UCRL2's logarithm takes the time before the block; its first step counts as one.
        time = jnp.maximum(jnp.sum(count), 1)
        frequency = jnp.where(visits[..., None] > 0, count / n[..., None], 1 / states)
        distance = self.width * jnp.sqrt(14 * states * jnp.log(2 * actions * time / self.confidence) / n)
        # As in UCRL2, the most that (s, a) may pay and where it may lead are chosen apart from each other.
        pays = largest_mean_rewards(posterior, self.confidence / 2, self.width)
        reward = jnp.sum(_favourable_rows(frequency, distance, pays) * pays, axis=-1)
        policy, model = extended_value_iteration(frequency, reward, distance, known, last.policy)
        return Plan(policy, policy, model)


def largest_mean_rewards(posterior: Posterior, confidence: float, width: float = 1.0) -> Array:
    """Upper ends, [S, A, S], above which any mean reward lies with a probability of at most `confidence`.

    At any time: a cell's share of `confidence` is divided among all numbers n of its rewards, as 1 / (n + 1) (n + 2).
    From `_FEW` rewards on the interval is Student's, which needs no prior; of fewer it would be huge, and of one or
    none there is no such interval. There the end is a quantile of the posterior, which is as good as the prior.
    """
    n, believed = posterior.count, posterior.rewards
    level = confidence / (n.size * (n + 1) * (n + 2))
    enough = n >= _FEW
    deviation = jnp.where(
        enough,
        jnp.sqrt(posterior.scatter / jnp.maximum(n * (n - 1), 1)),
        jnp.sqrt(believed.rate / (believed.shape * believed.strength)),
    )
    freedom = jnp.where(enough, jnp.maximum(n - 1, 1), 2 * believed.shape)
    middle = jnp.where(enough, posterior.average, believed.mean)
    return middle + width * student_t_above(level, freedom) * deviation


def student_t_above(level: Array, freedom: Array) -> Array:
    """A little more than the point that Student's t exceeds with a probability of `level` < 1/2, for freedom >= 1.

    Wallace (1959): where t and a normal z have the same tail, z^2 >= (freedom - 1/2) log(1 + t^2 / freedom).
    """
    z = jax.scipy.special.ndtri(level)
    return jnp.sqrt(freedom * jnp.expm1(z**2 / (freedom - 0.5)))


def extended_value_iteration(
    transition: Array, reward: Array, distance: Array, known: Known, last: Array, sweeps: int = 1000
) -> tuple[Array, Model]:
    """Optimal policy and model when each row may move by `distance` [S, A] in L1 towards better states."""

    def backup(value: Array) -> tuple[Array, Array]:
        rows = _favourable_rows(transition, distance, value)
        return rows, reward + known.discount * jnp.einsum("sat,t->sa", rows, value)

    def sweep(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        value, _, count = carry
        _, q = backup(value)
        new = jnp.where(known.terminal, 0.0, jnp.max(jnp.where(known.allowed, q, -jnp.inf), axis=-1))
        return new, jnp.max(jnp.abs(new - value)), count + 1

    # From above: no policy's value is larger in any of the models, so that every sweep is still optimistic.
    payable = jnp.where(known.allowed & ~known.terminal[:, None], reward, 0.0)
    top = jnp.maximum(jnp.max(payable), 0.0) / (1 - known.discount)
    start = (jnp.where(known.terminal, 0.0, top), jnp.array(jnp.inf), jnp.array(0))
    tolerance = noise_floor(top)
    value, _, _ = jax.lax.while_loop(lambda c: (c[1] > tolerance) & (c[2] < sweeps), sweep, start)
    rows, q = backup(value)
    kept = best_action(last, known.allowed)
    better = best_action(q, known.allowed)
    gain = jnp.max(jnp.where(known.allowed, q, -jnp.inf), axis=-1) - jnp.take_along_axis(q, kept[:, None], 1)[:, 0]
    policy = one_hot_policy(jnp.where(gain > 10 * noise_floor(q), better, kept), known.allowed)
    return policy, Model(jnp.where(known.terminal, 0.0, rows), reward)


def _favourable_rows(transition: Array, distance: Array, worth: Array) -> Array:
    """The rows [S, A, S] within `distance` [S, A] of these, in L1, whose expectation of `worth` is largest.

    `worth` is [S], of the states, or [S, A, S]. Mass goes to the best state, from the worst ones up.
    """

    def favourable(row: Array, distance: Array, worth: Array) -> Array:
        order = jnp.argsort(-worth)
        ranked = row[order]
        ranked = ranked.at[0].set(jnp.minimum(ranked[0] + distance / 2, 1.0))
        kept = jnp.diff(jnp.minimum(jnp.cumsum(ranked), 1.0), prepend=0.0)
        return jnp.zeros_like(kept).at[order].set(kept)

    own = None if worth.ndim == 1 else 0
    return jax.vmap(jax.vmap(favourable, (0, 0, own)), (0, 0, own))(transition, distance, worth)
