"""The types of `solve(policy, models, objective, *, starts, state, key) -> policy, state, metrics`."""

from typing import Any, NamedTuple, Protocol, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from cdpo.dynamics.models import ModelSet
from cdpo.dynamics.replay import Replay
from cdpo.solvers.policy import Gaussian, Policy, counted, kl_divergence

Metrics = dict[str, Array]


class Trust(eqx.Module):
    """Policies pi with E_{s ~ nu_q} KL(pi || q) <= bound, where states of nu_q are given, the KL of each as `counted`.

    A network learns to be near q where it is watched. So the states on which the multiplier watches it, and those on
    which the end of an update is checked, come from different rollouts.

    Whether it is on is a value and not a shape: both updates of CDPO run the same compiled program.
    """

    centre: Policy  # q
    watched: Array  # [S, d], of q's own rollouts under the reference
    chosen: Gaussian  # [S, m], what q does there
    checked: Array  # [S, d]
    bound: Array  # []
    active: Array  # [], bool

    @classmethod
    def around(cls, centre: Policy, watched: Array, checked: Array, bound: Array, *, active: bool = True) -> Self:
        """The region about q = `centre`."""
        return cls(centre, watched, centre(watched), checked, bound, jnp.asarray(active))

    @classmethod
    def off(cls, policy: Policy, states: int) -> Self:
        """No constraint, in the shape of one with that many states."""
        blank = jnp.zeros((states, policy.task.observations))
        return cls.around(policy, blank, blank, jnp.ones(()), active=False)

    def spent(self, policy: Policy, states: Array) -> Array:
        """E KL(policy || q) over states [S, d], as `counted`."""
        return jnp.mean(counted(kl_divergence(policy(states), self.centre(states))))

    def some_watched(self, key: Array, count: int) -> tuple[Array, Gaussian]:
        """Some of the watched states [count, d], and what q does there."""
        rows = jax.random.randint(key, (count,), 0, self.watched.shape[0])
        return self.watched[rows], jax.tree.map(lambda leaf: leaf[rows], self.chosen)


class Objective(NamedTuple):
    """The mean over the models of the policy's value, within a trust region."""

    discount: float
    trust: Trust


class Starts(eqx.Module):
    """Where imagined rollouts begin: a weighted mix of initial, visited and broadly drawn states."""

    initial: Array  # [I, d]
    visited: Replay
    low: Array  # [d], the box of the broad draws
    high: Array  # [d]
    weights: Array  # [3], of initial, visited, broad

    def draw(self, key: Array, shape: tuple[int, ...]) -> Array:
        """[*shape, d]."""
        kinds, first, second, third = jax.random.split(key, 4)
        bound = jnp.cumsum(self.weights) / jnp.sum(self.weights)
        kind = jnp.sum(jax.random.uniform(kinds, (*shape, 1)) >= bound[:2], axis=-1)[..., None]
        initial = self.initial[jax.random.randint(first, shape, 0, self.initial.shape[0])]
        visited = self.visited.draw(second, shape).observation
        broad = self.low + (self.high - self.low) * jax.random.uniform(third, (*shape, self.low.shape[0]))
        return jnp.where(kind == 0, initial, jnp.where(kind == 1, visited, broad))

    def only_initial(self) -> Self:
        """The states in which real episodes begin."""
        return eqx.tree_at(lambda s: s.weights, self, jnp.asarray([1.0, 0.0, 0.0]))


class Solver(Protocol):
    """The paper's MBPO(pi, {f}, J), for one seed."""

    def begin(self, policy: Policy, models: int, key: Array) -> Any:
        """The state that survives updates, iterations and checkpoints."""

    def renormalised(self, state: Any, old: Policy, new: Policy, reward: Array) -> Any:
        """The same state after the policy's normaliser changed and rewards are of the size `reward`."""

    def __call__(
        self, policy: Policy, models: ModelSet, objective: Objective, *, starts: Starts, state: Any, key: Array
    ) -> tuple[Policy, Any, Metrics]:
        """A better policy for the objective."""
