"""What the host knows of one seed, and why it may go on no more: bad numbers, or an environment that fails."""

from dataclasses import dataclass
from math import isfinite

import jax.numpy as jnp
import numpy as np
from jax import Array

from cdpo.dynamics.replay import split_rows
from cdpo.solvers.policy import HostPolicy
from cdpo.tasks import Task
from cdpo.tasks.asking import BrokenEnvironment, made
from cdpo.tasks.base import Environment
from cdpo.training.collect import INITIAL_STATES, Life, evaluation, initial_states

BAD = "not a finite number"


@dataclass(frozen=True)
class Pupil:
    """What the host knows of one seed."""

    seed: int
    environment: Environment
    steps: int = 0  # in the real environment
    iterations: int = 0  # of learning
    evaluated: float | None = None  # the last evaluation that was a number
    stopped: str | None = None  # why the seed goes on no more


def enrolled(task: Task, seed: int) -> tuple[Pupil, np.ndarray]:
    """A seed at its beginning, and where its episodes begin, [I, d]; one that cannot begin is stopped."""
    environment = made(task)
    try:
        initial = initial_states(environment, task, seed)
    except BrokenEnvironment as broken:
        why = f"the environment at the beginning: {broken}"
    else:
        if np.isfinite(initial).all():
            return Pupil(seed, environment), initial
        why = f"the initial states: {BAD}"
    return Pupil(seed, environment, stopped=why), np.zeros((INITIAL_STATES, task.observations), np.float32)


def live(life: Life, policy: HostPolicy | None, steps: int, episode: int) -> np.ndarray | str:
    """The rows of so many steps more; or why nothing can be learned from them."""
    try:
        rows = life.go(policy, steps)
    except BrokenEnvironment as broken:
        return f"the environment in episode {episode}: {broken}"
    return rows if np.isfinite(rows).all() else f"the data of episode {episode}: {BAD}"


def examined(pupil: Pupil, task: Task, policy: HostPolicy, episode: int, count: int) -> float | str:
    """The mean return of an evaluation; or why it has none."""
    what = f"the evaluation of episode {episode}"
    try:
        returns = evaluation(pupil.environment, task, policy, pupil.seed, episode, count)
    except BrokenEnvironment as broken:
        return f"the environment in {what}: {broken}"
    with np.errstate(over="ignore"):  # the sum of numbers need not be one
        mean = float(np.mean(returns))
    return mean if isfinite(mean) else f"{what}: {BAD}"


def bad_function(task: Task, rows: Array) -> str | None:
    """Which of the functions that are known of a task gives no finite number on real transitions, if any does.

    Models pay and end by them: their bad numbers spoil what is learned, but are not part of it.
    """
    real = split_rows(rows, task.observations, task.actions)
    for name, function in (("reward", task.reward), ("terminates", task.terminates)):
        if function is not None:
            given = function(real.observation, task.unscaled(real.action), real.next)
            if not jnp.isfinite(given).all():
                return f"{name} function"
    return None
