"""Real episodes, on the host."""

import math
from collections.abc import Callable
from typing import Literal, Protocol

import numpy as np

from cdpo.dynamics.replay import row_width
from cdpo.tasks import Task, asking
from cdpo.tasks.base import Environment

INITIAL_STATES = 256  # resets that stand for the distribution of initial states
Noise = Literal["pink", "white"]

# What a stream of random numbers is for; streams of one seed never meet.
_INITIAL, _TRAINING, _EVALUATION = range(3)


class Actor(Protocol):
    """Who acts in real episodes: a policy, or a planner."""

    def begin(self, episode: int) -> None:
        """Another episode, by its number; what was remembered of the last is forgotten."""

    def __call__(self, observation: np.ndarray, noise: np.ndarray | None = None) -> np.ndarray:
        """The action [m] in [-1, 1] at an observation [d]: the mode, or a draw with standard normal `noise` [m]."""


def streams(seed: int, purpose: int, episode: int, number: int = 0) -> tuple[int, np.random.Generator]:
    """The seed of a reset and the noise of an episode, from nothing but these numbers: no state to carry."""
    sequence = np.random.SeedSequence((seed, purpose, episode, number))
    reset, noise = sequence.spawn(2)
    return int(reset.generate_state(1)[0]), np.random.default_rng(noise)


def initial_states(environment: Environment, task: Task, seed: int) -> np.ndarray:
    """Where episodes begin, [I, d]."""
    seeds = (streams(seed, _INITIAL, 0, number)[0] for number in range(INITIAL_STATES))
    return np.stack([_first(environment, task, each) for each in seeds])


def _first(environment: Environment, task: Task, reset: int) -> np.ndarray:
    """The first observation after a reset, float32 [d]."""
    observation = asking.reset(environment, task, reset)
    with np.errstate(over="ignore"):  # what single precision cannot hold is an infinity, and met as one
        return np.asarray(observation, np.float32)


def training_life(
    environment: Environment, task: Task, seed: int, episode: int, noise: Noise, *, random: bool = False
) -> "Life":
    """An episode by draws from a policy with this noise, or by uniform actions that follow each other as it does."""
    reset, generator = streams(seed, _TRAINING, episode)
    drawn = (_UNIFORM if random else _NOISE)[noise](generator, task.horizon, task.actions)
    return Life(environment, task, reset, drawn.astype(np.float32), episode)


def pink_noise(random: np.random.Generator, steps: int, columns: int) -> np.ndarray:
    """Gaussian noise [steps, columns] of mean 0 and variance 1 whose power falls with the frequency (Timmer 1995)."""
    length = max(2, 2 * steps)  # twice as long, and cut: a period would make the end join the beginning
    frequency = np.fft.rfftfreq(length)
    amplitude = np.maximum(frequency, 1 / length) ** -0.5
    amplitude[0] = 0.0
    spectrum = amplitude[:, None] * (random.normal(size=(2, len(frequency), columns)) * [[[1]], [[1j]]]).sum(axis=0)
    # The variance of a draw is known from the amplitudes: scaling by its own would make a draw depend on its future.
    middle = amplitude[1:-1]
    deviation = np.sqrt(4 * np.sum(middle**2) + amplitude[-1] ** 2) / length
    return np.fft.irfft(spectrum, n=length, axis=0)[:steps] / deviation


def _normal_cdf(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


_NOISE: dict[Noise, Callable[[np.random.Generator, int, int], np.ndarray]] = {
    "pink": pink_noise,
    "white": lambda random, *shape: random.normal(size=shape),
}
_UNIFORM: dict[Noise, Callable[[np.random.Generator, int, int], np.ndarray]] = {
    "pink": lambda random, *shape: 2 * _normal_cdf(pink_noise(random, *shape)) - 1,
    "white": lambda random, *shape: random.uniform(-1.0, 1.0, shape),
}


def evaluation(environment: Environment, task: Task, policy: Actor, seed: int, episode: int, count: int) -> list[float]:
    """Returns of `count` episodes by the policy's mode, or by plans; NaN where anything was no finite number."""
    returns = []
    for number in range(count):
        policy.begin(number)
        reset, _ = streams(seed, _EVALUATION, episode, number)
        life = Life(environment, task, reset, None)
        life.go(policy, task.horizon)
        returns.append(life.total if np.isfinite(life.rows).all() else math.nan)
    return returns


class Life:
    """An episode that goes on until it is over, by whoever acts meanwhile. It begins with its first step.

    It is over as well with the first row that holds what is no finite number: nobody is to act on that. What the
    environment raises, and answers of a wrong kind, are a BrokenEnvironment.
    """

    def __init__(
        self, environment: Environment, task: Task, reset: int, noise: np.ndarray | None, episode: int = 0
    ) -> None:
        """With the noise [horizon, m] of all its actions, or none; `episode` is the number in its rows."""
        self._environment, self._task, self._reset, self._noise = environment, task, reset, noise
        self._rows = np.empty((task.horizon, row_width(task.observations, task.actions)), np.float32)
        self._rows[:, -1] = episode
        self._observation: np.ndarray | None = None
        self.steps = 0
        self.total = 0.0  # sum of rewards
        self.ended = False  # by the task and not by its time limit
        self.over = False

    @property
    def rows(self) -> np.ndarray:
        """So far, [n, 2 d + m + 3], as in the replay."""
        return self._rows[: self.steps]

    def go(self, policy: Actor | None, steps: int) -> np.ndarray:
        """So many steps more, or as many as are left; their rows. Without a policy the noise is what is done."""
        first = self.steps
        if self._observation is None:
            self._observation = _first(self._environment, self._task, self._reset)
            self._good = bool(np.isfinite(self._observation).all())
        while self.steps < first + steps and not self.over:
            self._step(policy, self._observation)
        return self._rows[first : self.steps]

    def _step(self, policy: Actor | None, observation: np.ndarray) -> None:
        row, d = self._rows[self.steps], self._task.observations
        row[:d], row[d:-1] = observation, np.nan
        noise = None if self._noise is None else self._noise[self.steps]
        self.steps += 1
        self.over = True  # unless it leads on
        if self._good:
            action = noise if policy is None else policy(observation, noise)
            assert action is not None
            row[d : d + self._task.actions] = action
            if np.isfinite(action).all():
                self._act(row, action)

    def _act(self, row: np.ndarray, action: np.ndarray) -> None:
        reached = asking.step(self._environment, self._task, self._task.unscaled(action))
        d = self._task.observations
        with np.errstate(over="ignore"):
            self._observation = np.asarray(reached.observation, np.float32)
            row[-d - 3] = reached.reward
        row[-d - 2 : -2] = self._observation
        row[-2] = reached.terminated
        self.total += reached.reward
        self.ended = reached.terminated
        self._good = bool(np.isfinite(row).all())
        ends = reached.terminated or reached.truncated or self.steps == self._task.horizon
        self.over = ends or not self._good
