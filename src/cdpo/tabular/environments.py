"""The laboratory's environments: each a small dataclass that builds its exact tables for a size."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Protocol, runtime_checkable

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jax import Array

from cdpo.errors import UserError, check_choices
from cdpo.tabular.mdp import FiniteMDP, check_entries

Size = Annotated[int, tyro.conf.Suppress]  # the command line has one --size for all environments


@runtime_checkable
class Environment(Protocol):
    """What the simulation needs. `make` is pure, so that each seed can have an MDP of its own."""

    @property
    def period(self) -> int:
        """After how many steps posterior agents plan anew, unless told otherwise."""

    def make(self, key: Array) -> FiniteMDP:
        """The MDP for one seed; the key matters only where the MDP itself is random."""


@dataclass(frozen=True)
class Sized(ABC):
    """A named family of environments with a size."""

    name: ClassVar[str]
    smallest: ClassVar[int]
    meaning: ClassVar[str]  # what the size counts

    size: Size = 1

    def __post_init__(self) -> None:
        """Reject sizes that do not exist."""
        if self.size < self.smallest:
            raise UserError(f"{self.name} needs a size ({self.meaning}) of at least {self.smallest}, not {self.size}")
        check_entries(self.name, *self.shape)

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """Number of states and of actions."""

    @property
    @abstractmethod
    def period(self) -> int:
        """After how many steps posterior agents plan anew, unless told otherwise."""

    @abstractmethod
    def make(self, key: Array) -> FiniteMDP:
        """The MDP for one seed."""


class _Outcomes:
    """Tables from a list of outcomes. Outcomes that share (s, a, s') become one with the mixture's moments."""

    def __init__(self, states: int, actions: int):
        self.probability, self.first, self.second = np.zeros((3, states, actions, states))

    def add(self, s: int, a: int, successor: int, probability: float, mean: float, sd: float) -> None:
        cell = (s, a, successor)
        self.probability[cell] += probability
        self.first[cell] += probability * mean
        self.second[cell] += probability * (mean**2 + sd**2)

    def tables(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Transition, mean reward and standard deviation, each [S, A, S]."""
        weight = np.where(self.probability > 0, self.probability, 1)
        mean = self.first / weight
        return self.probability, mean, np.sqrt(np.maximum(self.second / weight - mean**2, 0))


@dataclass(frozen=True)
class Chain(Sized):
    """N-Chain (Markou and Rasmussen, 2019): only going right all the way pays, and every step right costs."""

    name: ClassVar[str] = "chain"
    smallest: ClassVar[int] = 2
    meaning: ClassVar[str] = "number of states"

    size: Size = 8
    pays: Literal["success", "attempt"] = "success"
    """Whether going right at the end pays 1 when it succeeds, as in the original study, or whenever it is tried."""

    def __post_init__(self) -> None:
        """Reject what does not exist."""
        super().__post_init__()
        check_choices(self)

    @property
    def shape(self) -> tuple[int, int]:
        """States and actions."""
        return self.size, 2

    @property
    def period(self) -> int:
        """One more than the chain is long."""
        return self.size + 1

    def make(self, key: Array) -> FiniteMDP:
        """Action 0 is left, action 1 is right."""
        n = self.size
        delta = 0.1 * np.exp(-n / 4)
        outcomes = _Outcomes(n, 2)
        for s in range(n):
            end = s == n - 1
            left, right = max(s - 1, 0), 0 if end else s + 1
            slip = 1.0 if end and self.pays == "attempt" else -delta
            outcomes.add(s, 0, left, 1.0, 0.0, delta)
            outcomes.add(s, 1, left, 1 / n, slip, delta)
            outcomes.add(s, 1, right, 1 - 1 / n, 1.0 if end else -delta, delta)
        return FiniteMDP(*outcomes.tables())


@dataclass(frozen=True)
class WideNarrow(Sized):
    """A ring of N wide states, each followed by a narrow one: many actions whose noise hides which is best."""

    name: ClassVar[str] = "wide-narrow"
    smallest: ClassVar[int] = 1
    meaning: ClassVar[str] = "number of wide states"

    size: Size = 3
    width: int = 6
    """Number of actions in a wide state."""

    def __post_init__(self) -> None:
        """Reject sizes that do not exist."""
        super().__post_init__()
        if self.width < 1:
            raise UserError(f"wide-narrow needs a width of at least 1, not {self.width}")

    @property
    def shape(self) -> tuple[int, int]:
        """States and actions."""
        return 2 * self.size + 1, self.width

    @property
    def period(self) -> int:
        """One turn of the ring and one step."""
        return 2 * self.size + 2

    def make(self, key: Array) -> FiniteMDP:
        """Wide states are 0, 2, ..., 2N-2; the last state leads back to the first."""
        n, states = self.size, 2 * self.size + 1
        ring = np.roll(np.eye(states), 1, axis=1)
        transition = np.repeat(ring[:, None], self.width, axis=1)
        wide = np.arange(states) % 2 == 0
        wide[2 * n] = False
        allowed = np.ones((states, self.width), bool)
        allowed[~wide, 1:] = False
        mean = np.zeros((states, self.width))
        mean[wide, 0] = 0.5
        sd = np.ones((states, self.width))
        sd[2 * n] = 0
        return FiniteMDP(transition, mean, sd[:, :, None], allowed=allowed)


@dataclass(frozen=True)
class PriorMDP(Sized):
    """An MDP drawn for each seed: Dirichlet(1) transitions, Gaussian rewards from a Normal-Gamma(0, 1, 4, 4)."""

    name: ClassVar[str] = "prior-mdp"
    smallest: ClassVar[int] = 1
    meaning: ClassVar[str] = "number of states"

    size: Size = 4
    actions: int = 2
    """Number of actions."""

    def __post_init__(self) -> None:
        """Reject sizes that do not exist."""
        super().__post_init__()
        if self.actions < 1:
            raise UserError(f"prior-mdp needs at least 1 action, not {self.actions}")

    @property
    def shape(self) -> tuple[int, int]:
        """States and actions."""
        return self.size, self.actions

    @property
    def period(self) -> int:
        """One more than there are states."""
        return self.size + 1

    def make(self, key: Array) -> FiniteMDP:
        """Draw the tables."""
        shape = (self.size, self.actions, self.size)
        rows, precision, noise = jax.random.split(key, 3)
        weight = jax.random.exponential(rows, shape)
        tau = jax.random.gamma(precision, 4.0, shape) / 4.0
        mean = jax.random.normal(noise, shape) / jnp.sqrt(tau)
        return FiniteMDP(weight / jnp.sum(weight, axis=-1, keepdims=True), mean, 1 / jnp.sqrt(tau))


@dataclass(frozen=True)
class DeepSea(Sized):
    """bsuite's DeepSea: dive N rows; only diving right at every row, against a small cost, finds the treasure."""

    name: ClassVar[str] = "deep-sea"
    smallest: ClassVar[int] = 2
    meaning: ClassVar[str] = "rows and columns"

    size: Size = 5
    shuffle: bool = True
    """Which action means right is drawn for each cell and seed, as bsuite does; otherwise action 1."""

    @property
    def shape(self) -> tuple[int, int]:
        """States and actions."""
        return self.size * self.size + 1, 2

    @property
    def period(self) -> int:
        """One episode."""
        return self.size

    def make(self, key: Array) -> FiniteMDP:
        """State row * N + column; one more state, N * N, is the end. The discount 0.99 is bsuite's agents'."""
        n = self.size
        states = n * n + 1
        transition = np.zeros((states, 2, states))
        reward = np.zeros((states, 2))
        for row in range(n):
            for column in range(n):
                for right in (0, 1):
                    target = min(column + 1, n - 1) if right else max(column - 1, 0)
                    following = (row + 1) * n + target if row < n - 1 else n * n
                    transition[row * n + column, right, following] = 1
                    reward[row * n + column, right] = -0.01 / n * right + (right and column == n - 1)
        transition[n * n, :, n * n] = 1
        terminal = np.arange(states) == n * n
        if not self.shuffle:
            return FiniteMDP(transition, reward, terminal=terminal, discount=0.99)
        flip = jax.random.bernoulli(key, shape=(states,))
        return FiniteMDP(
            jnp.where(flip[:, None, None], transition[:, ::-1], transition),
            jnp.where(flip[:, None], reward[:, ::-1], reward),
            terminal=terminal,
            discount=0.99,
        )


@dataclass(frozen=True)
class Bandit(Sized):
    """Arms with means drawn from N(0, 1) for each seed, and rewards of standard deviation 1."""

    name: ClassVar[str] = "bandit"
    smallest: ClassVar[int] = 2
    meaning: ClassVar[str] = "number of arms"

    size: Size = 4

    @property
    def shape(self) -> tuple[int, int]:
        """States and actions."""
        return 1, self.size

    @property
    def period(self) -> int:
        """Plan before every pull."""
        return 1

    def make(self, key: Array) -> FiniteMDP:
        """One state."""
        mean = jax.random.normal(key, (1, self.size))
        return FiniteMDP(jnp.ones((1, self.size, 1)), mean, 1.0)


@dataclass(frozen=True, eq=False)
class Fixed:
    """An MDP of the user's own, the same for every seed."""

    mdp: FiniteMDP
    period: int

    def make(self, key: Array) -> FiniteMDP:
        """The MDP itself."""
        return self.mdp


ENVIRONMENTS: dict[str, type[Sized]] = {
    environment.name: environment for environment in (Chain, WideNarrow, PriorMDP, DeepSea, Bandit)
}


def from_gymnasium(env: str | gymnasium.Env[Any, Any], discount: float = 0.99, **settings: Any) -> FiniteMDP:
    """The FiniteMDP of a Gymnasium environment with a transition table: FrozenLake, CliffWalking, Taxi.

    `env` is an environment, or an id with settings as for `gymnasium.make`. Two outcomes of one action that lead
    to the same state with different rewards become one with the mixture's mean and standard deviation.
    """
    made = gymnasium.make(env, **settings) if isinstance(env, str) else env
    try:
        table = getattr(made.unwrapped, "P", None)
        label = env if isinstance(env, str) else str(made.spec.id if made.spec else made)
        if not isinstance(table, dict):
            raise UserError(f"{label} has no transition table P, so it cannot become a finite MDP")
        start = getattr(made.unwrapped, "initial_state_distrib", None)
    finally:
        if isinstance(env, str):
            made.close()
    states, actions = len(table), len(table[0])
    check_entries(label, states, actions)
    start = np.eye(states)[0] if start is None else np.asarray(start, float)
    outcomes = _Outcomes(states, actions)
    for s, a in np.ndindex(states, actions):
        for probability, successor, reward, _ in table[s][a]:
            outcomes.add(s, a, successor, probability, reward, 0.0)
    ends = _terminal_states(table, start, label)
    transition, mean, sd = outcomes.tables()
    transition[ends] = np.eye(states)[ends][:, None]
    mean[ends] = 0
    sd[ends] = 0
    return FiniteMDP(transition, mean, sd, start=start, terminal=ends, discount=discount)


def _terminal_states(table: dict[int, dict[int, list[Any]]], start: np.ndarray, label: str) -> np.ndarray:
    """States whose entry ends the episode, judged by the transitions that can happen.

    Tables also list moves from states that no episode reaches, and a terminal state's own loops; these say nothing.
    """
    ends, goes_on = np.zeros((2, len(table)), bool)
    seen = set(np.flatnonzero(start).tolist())
    waiting = list(seen)
    while waiting:
        for outcomes in table[waiting.pop()].values():
            for probability, successor, _, done in outcomes:
                if probability <= 0:
                    continue
                ends[successor] |= done
                goes_on[successor] |= not done
                if not done and successor not in seen:
                    seen.add(successor)
                    waiting.append(successor)
    both = ends & (goes_on | (start > 0))
    if both.any():
        raise UserError(f"{label} enters state {int(np.argmax(both))} both ending and going on")
    return ends
