"""Will an environment work, and is what the agent believes of it true?"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from cdpo.tasks import asking
from cdpo.tasks.asking import told
from cdpo.tasks.base import Environment, Task, Transition

TOLERANCE = 1e-4  # of a reward, relative to the larger of 1 and the reward: single precision, with room


@dataclass(frozen=True)
class Report:
    """What was found out about a task."""

    name: str
    steps: int
    """Real steps that were taken."""
    returns: tuple[float, ...]
    """Of the episodes, under random actions."""
    lengths: tuple[int, ...]
    reward_error: float | None
    """Largest difference between the known reward and the environment's; None: the reward is to be learned."""
    termination_errors: int | None
    """Steps whose end the known rule tells wrongly; None: the rule is to be learned."""
    findings: tuple[str, ...]
    """What is well, one line each."""
    problems: tuple[str, ...]
    """What is not, one line each."""

    @property
    def ok(self) -> bool:
        """Whether there is no problem."""
        return not self.problems


class _Episode(NamedTuple):
    """Observations [T+1, n], actions [T, m], rewards [T], terminated [T]; whether the last step was truncated."""

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: bool


def check_task(task: Task, episodes: int = 3, seed: int = 0) -> Report:
    """Runs random episodes, the first of them twice, and compares what happens with what the task promises."""
    env = asking.made(task)
    try:
        runs = [_run(env, task, seed + k) for k in range(episodes)]
        again = _run(env, task, seed)
    except asking.BrokenEnvironment as broken:
        return Report(task.name, 0, (), (), None, None, (), (f"running it failed: {broken}",))
    finally:
        if not task.shared:
            asking.close(env)
    findings: list[str] = []
    problems: list[str] = []

    def judge(holds: bool, well: str, otherwise: str) -> None:
        (findings if holds else problems).append(well if holds else otherwise)

    _judge_numbers(env, task, runs, judge)
    judge(
        np.array_equal(runs[0].observations[0], again.observations[0], equal_nan=True),
        "reset(seed) gives the same first observation again",
        "reset(seed) with the same seed gives another first observation; draw from self.np_random only",
    )
    judge(
        _same(runs[0], again),
        "the same seed and actions give the same episode again",
        "the same seed and actions give another episode; such runs cannot be repeated or resumed exactly",
    )
    reward_error = _judge_reward(task.reward, runs, judge)
    wrong_ends = _judge_ends(task.terminates, runs, judge)
    lengths = tuple(len(run.rewards) for run in runs)
    returns = tuple(float(run.rewards.sum()) for run in runs)
    steps = sum(lengths) + len(again.rewards)
    return Report(task.name, steps, returns, lengths, reward_error, wrong_ends, tuple(findings), tuple(problems))


def _run(env: Environment, task: Task, seed: int) -> _Episode:
    """An episode under uniform actions; stopped, not truncated, should it pass the task's horizon."""
    random = np.random.default_rng(seed)
    observations, rewards, ends = [asking.reset(env, task, seed)], [], []
    actions: list[np.ndarray] = []
    over = False
    while not over and len(actions) <= task.horizon:
        action = random.uniform(task.low, task.high).astype(np.float32)
        reached = asking.step(env, task, action)
        observations.append(reached.observation)
        actions.append(action)
        rewards.append(reached.reward)
        ends.append(reached.terminated)
        over = reached.terminated or reached.truncated
    return _Episode(np.stack(observations), np.stack(actions), np.array(rewards), np.array(ends), reached.truncated)


class _Judge(Protocol):
    def __call__(self, holds: bool, well: str, otherwise: str) -> None: ...


def _judge_numbers(env: Environment, task: Task, runs: list[_Episode], judge: _Judge) -> None:
    """Sizes, spaces, finite numbers and the time limit."""
    space = env.observation_space
    shape = runs[0].observations.shape[1:]
    judge(
        shape == (task.observations,) and space.shape == shape,
        f"observations are vectors of {task.observations} numbers, actions of {task.actions}",
        f"observations have shape {shape}, the space says {space.shape} and the task ({task.observations},)",
    )
    dtype = space.dtype  # an observation of another precision is no mistake that matters here
    outside = sum(not space.contains(each.astype(dtype)) for run in runs for each in run.observations)
    judge(outside == 0, "observations stay in their space", f"{outside} observations lie outside the observation space")
    bad = [
        name
        for name, arrays in (("observation", [r.observations for r in runs]), ("reward", [r.rewards for r in runs]))
        if not all(np.isfinite(each).all() for each in arrays)
    ]
    judge(not bad, "observations and rewards are finite", f"not every {' and '.join(bad)} is a finite number")
    over = [len(run.rewards) for run in runs if len(run.rewards) > task.horizon]
    judge(
        not over,
        f"episodes end within {task.horizon} steps",
        f"an episode goes on after the time limit of {task.horizon} steps; set truncated there, or give horizon",
    )


def _same(one: _Episode, other: _Episode) -> bool:
    pairs = zip(one, other, strict=True)
    return all(np.array_equal(np.asarray(a, float), np.asarray(b, float), equal_nan=True) for a, b in pairs)


def _judge_reward(reward: Transition | None, runs: list[_Episode], judge: _Judge) -> float | None:
    if reward is None:
        judge(True, "the reward is not known and will be learned", "")
        return None
    real = np.concatenate([run.rewards for run in runs])
    try:
        known = _apply(reward, runs)
    except Exception as error:  # the function is the user's, too
        judge(False, "", f"reward failed: {told(error)}")
        return None
    if known.shape != real.shape:
        judge(False, "", f"reward gives shape {known.shape} for {len(real)} transitions; it must give one number each")
        return None
    if bad := np.sum(~np.isfinite(known)):
        judge(False, "", f"the known reward is no finite number at {bad} of {len(real)} steps; mend it")
        return None
    difference = np.abs(known - real)
    largest = float(np.max(difference))
    within = bool(np.all(difference <= TOLERANCE * np.maximum(1, np.abs(real))))
    judge(
        within,
        f"the known reward is the environment's (largest difference {largest:.1e})",
        f"the known reward differs from the environment's by up to {largest:.3g}; mend it, or leave it to be learned",
    )
    return largest


def _judge_ends(terminates: Transition | None, runs: list[_Episode], judge: _Judge) -> int | None:
    if terminates is None:
        judge(True, "the rule of termination is not known and will be learned", "")
        return None
    real = np.concatenate([run.terminated for run in runs])
    try:
        known = _apply(terminates, runs)
    except Exception as error:
        judge(False, "", f"terminates failed: {told(error)}")
        return None
    if known.shape != real.shape or known.dtype != bool:
        judge(
            False, "", f"terminates gives {known.dtype} of shape {known.shape}; it must give one boolean per transition"
        )
        return None
    wrong = int(np.sum(known != real))
    judge(
        wrong == 0,
        f"the known rule of termination is the environment's ({int(real.sum())} ends in {len(real)} steps)",
        f"the known rule of termination is wrong at {wrong} of {len(real)} steps; mend it, or leave it to be learned",
    )
    return wrong


def _apply(function: Transition, runs: list[_Episode]) -> np.ndarray:
    """A function of transitions on all of them, compiled as the agents do."""
    before = np.concatenate([run.observations[:-1] for run in runs])
    after = np.concatenate([run.observations[1:] for run in runs])
    action = np.concatenate([run.actions for run in runs])
    return np.asarray(jax.jit(function)(*(jnp.asarray(each, jnp.float32) for each in (before, action, after))))
