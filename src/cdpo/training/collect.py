"""Real episodes, on the host."""

import math
from typing import NamedTuple, Protocol

import numpy as np

from cdpo.tasks import Task
from cdpo.tasks.base import Environment

INITIAL_STATES = 256  # resets that stand for the distribution of initial states

# What a stream of random numbers is for; streams of one seed never meet.
_INITIAL, _TRAINING, _EVALUATION = range(3)


class Actor(Protocol):
    """Who acts in real episodes: a policy, or a planner."""

    def begin(self, episode: int) -> None:
        """Another episode, by its number; what was remembered of the last is forgotten."""

    def __call__(self, observation: np.ndarray, noise: np.ndarray | None = None) -> np.ndarray:
        """The action [m] in [-1, 1] at an observation [d]: the mode, or a draw with standard normal `noise` [m]."""


class Episode(NamedTuple):
    """What was lived through."""

    rows: np.ndarray  # [n, 2 d + m + 2], as in the replay
    total: float  # sum of rewards
    ended: bool  # by the task and not by its time limit


def streams(seed: int, purpose: int, episode: int, number: int = 0) -> tuple[int, np.random.Generator]:
    """The seed of a reset and the noise of an episode, from nothing but these numbers: no state to carry."""
    sequence = np.random.SeedSequence((seed, purpose, episode, number))
    reset, noise = sequence.spawn(2)
    return int(reset.generate_state(1)[0]), np.random.default_rng(noise)


def initial_states(environment: Environment, seed: int) -> np.ndarray:
    """Where episodes begin, [I, d]."""
    seeds = (streams(seed, _INITIAL, 0, number)[0] for number in range(INITIAL_STATES))
    return np.stack([np.asarray(environment.reset(seed=each)[0], np.float32) for each in seeds])


def training_episode(
    environment: Environment, task: Task, policy: Actor | None, seed: int, episode: int, *, pink: bool
) -> Episode:
    """One episode by draws from the policy, or by uniform actions without one; the noise is pink or white."""
    reset, random = streams(seed, _TRAINING, episode)
    shape = task.horizon, task.actions
    noise = pink_noise(random, *shape) if pink else random.normal(size=shape)
    if policy is None:
        noise = 2 * _normal_cdf(noise) - 1
    return _live(environment, task, policy, reset, noise.astype(np.float32))


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


def evaluation(environment: Environment, task: Task, policy: Actor, seed: int, episode: int, count: int) -> list[float]:
    """Returns of `count` episodes by the policy's mode, or by plans."""
    returns = []
    for number in range(count):
        policy.begin(number)
        reset, _ = streams(seed, _EVALUATION, episode, number)
        returns.append(_live(environment, task, policy, reset, None).total)
    return returns


def _live(environment: Environment, task: Task, policy: Actor | None, reset: int, noise: np.ndarray | None) -> Episode:
    d, m = task.observations, task.actions
    rows = np.empty((task.horizon, 2 * d + m + 2), np.float32)
    middle, half = (task.high + task.low) / 2, (task.high - task.low) / 2
    observation, _ = environment.reset(seed=reset)
    total = 0.0
    for step in range(task.horizon):
        if policy is None:
            assert noise is not None
            action = noise[step]
        else:
            action = policy(observation, None if noise is None else noise[step])
        following, reward, terminated, truncated, _ = environment.step(middle + half * action)
        row = rows[step]
        row[:d] = observation
        row[d : d + m] = action
        row[d + m] = reward
        row[d + m + 1 : -1] = following
        row[-1] = terminated
        total += float(reward)
        observation = following
        if terminated or truncated:
            break
    return Episode(rows[: step + 1], total, bool(terminated))
