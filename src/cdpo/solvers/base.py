"""The types of `solve(policy, models, objective, *, starts, state, key) -> policy, state, metrics`."""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from cdpo.dynamics.models import ModelSet
from cdpo.dynamics.replay import Replay
from cdpo.errors import UserError
from cdpo.solvers.policy import Gaussian, Policy, mean_divergence
from cdpo.told import Told

Metrics = dict[str, Array]

_WATCHED = 128  # states of the trust region in a gradient step
_RETREATS = 16
_MARGIN = 0.9  # of the bound: what is spent is measured on yet other states


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
    def off(cls, policy: Policy, states: int = 0) -> Self:
        """No constraint; in the shape of one with that many states, where both are to run the same program."""
        blank = jnp.zeros((states, policy.task.observations))
        return cls.around(policy, blank, blank, jnp.ones(()), active=False)

    def spent(self, policy: Policy, states: Array) -> Array:
        """E KL(policy || q) over states [S, d], as `counted`."""
        return mean_divergence(policy(states), self.centre(states))

    def some_watched(self, key: Array) -> tuple[Array, Gaussian]:
        """Some of the watched states, as a gradient step needs, or all of few, [W, d]; and what q does there."""
        if self.watched.shape[0] <= _WATCHED:
            return self.watched, self.chosen
        rows = jax.random.randint(key, (_WATCHED,), 0, self.watched.shape[0])
        return self.watched[rows], jax.tree.map(lambda leaf: leaf[rows], self.chosen)

    def multiplier(self, log_multiplier: Array) -> Array:
        """What the KL weighs in a Lagrangian: nothing where there is no constraint."""
        return jnp.where(self.active, jnp.exp(log_multiplier), 0.0)

    @staticmethod
    def lagrangian(loss: Array, spent: Array, multiplier: Array) -> Array:
        """Of a loss, of the same size whatever the multiplier is."""
        return (loss + multiplier * spent) / (1 + multiplier)

    def adapted(self, log_multiplier: Array, spent: Array, rate: float) -> Array:
        """Its logarithm after a step: up where more is spent than the bound, down where less."""
        excess = jnp.clip(spent / self.bound - 1, -1.0, 1.0)
        step = jnp.where(self.active, rate * excess, 0.0)
        return jnp.clip(log_multiplier + step, -7.0, 7.0)


def step_back(policy: Policy, trust: Trust) -> tuple[Policy, Array]:
    """The policy, moved towards q by the least share that puts it inside the trust region; and what was kept.

    The multiplier holds the bound on average over its steps; an update must hold it at its end.
    """

    def between(share: Array) -> Policy:
        net = jax.tree.map(lambda far, near: near + share * (far - near), policy.net, trust.centre.net)
        return eqx.tree_at(lambda p: p.net, policy, net)

    shares = jnp.linspace(1.0, 0.0, _RETREATS + 1)
    spent = jax.vmap(lambda share: trust.spent(between(share), trust.checked))(shares)
    inside = spent <= _MARGIN * trust.bound
    share = jnp.where(trust.active, shares[jnp.argmax(inside.at[-1].set(True))], 1.0)
    # A share of one must give back the very same numbers.
    net = jax.tree.map(lambda moved, own: jnp.where(share == 1.0, own, moved), between(share).net, policy.net)
    return eqx.tree_at(lambda p: p.net, policy, net), share


class Size(NamedTuple):
    """How large numbers are, by their root mean squares: critics see them divided by it."""

    reward: Array  # of a step
    value: Array  # of what follows a state


class Objective(NamedTuple):
    """The mean over the models of the policy's value, within a trust region."""

    discount: float
    trust: Trust


@dataclass(frozen=True)
class StartSettings(Told, zero=("initial", "visited", "broad")):
    """Where imagined rollouts begin; every solver's settings have it."""

    initial: float = 0.25
    """Weight of initial states among the starts of rollouts."""
    visited: float = 0.25
    """Weight of visited states among the starts."""
    broad: float = 0.5
    """Weight of states drawn broadly over the state range among the starts."""

    def __post_init__(self) -> None:
        """Rollouts begin somewhere."""
        super().__post_init__()
        if self.initial + self.visited + self.broad == 0:
            raise UserError(f"{self.part}.initial, {self.part}.visited and {self.part}.broad must not all be zero")


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

    @property
    def settings(self) -> Any:
        """Its own."""

    def begin(self, policy: Policy, models: int, key: Array) -> Any:
        """The state that survives updates, iterations and checkpoints."""

    def renormalised(self, state: Any, old: Policy, new: Policy, size: Size) -> Any:
        """The same state after the policy's normaliser changed and what is paid is of another `size`."""

    def beyond(self, state: Any, policy: Policy, states: Array) -> Array | None:
        """What follows states [M, B, d] on their models, [M, B], as it was learned; None where none of it was."""

    def __call__(
        self, policy: Policy, models: ModelSet, objective: Objective, *, starts: Starts, state: Any, key: Array
    ) -> tuple[Policy, Any, Metrics]:
        """A better policy for the objective."""
