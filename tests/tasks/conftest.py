"""What the tests of the tasks share: each task, and real transitions that reach far."""

from functools import cache
from typing import NamedTuple

import gymnasium
import numpy as np
import pytest

from cdpo.tasks import TASKS
from cdpo.tasks.lqr import LQR


class Transitions(NamedTuple):
    """States [T, n], actions [T, m], next states [T, n], rewards [T] and ends [T], of the real environment."""

    before: np.ndarray
    action: np.ndarray
    after: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray


def place(env, random):
    """Sets a far but possible state; gives the observation there, where the environment can tell."""
    env = env.unwrapped
    if isinstance(env, LQR):
        return env.set_state(random.uniform(-10, 10, 3))
    if not isinstance(env, gymnasium.envs.mujoco.MujocoEnv):
        return env.set_state(random.uniform(-20, 20), random.uniform(-15, 15))
    low, high = np.where(env.model.jnt_limited[:, None], env.model.jnt_range, [-3.0, 3.0]).T
    wide = np.clip(random.uniform(low, high), -4, 4)
    env.set_state(wide, 3 * random.standard_normal(env.model.nv))
    return None


@cache
def _collect(name):
    """Random episodes, episodes at the actions' bounds, and single steps from states that were set."""
    task = TASKS[name]
    env = task.make()
    random = np.random.default_rng(0)
    rows = []
    for episode in range(6):
        observation, _ = env.reset(seed=episode)
        done, steps = False, 0
        while not done and steps < 60:
            corner = np.where(random.random(task.actions) < 0.5, task.low, task.high)
            action = (corner if episode % 2 else random.uniform(task.low, task.high)).astype(np.float32)
            following, reward, terminated, truncated, _ = env.step(action)
            rows.append((observation, action, following, reward, terminated))
            observation, done, steps = following, terminated or truncated, steps + 1
    for _ in range(100):
        env.reset(seed=0)
        before = place(env, random)
        action = random.uniform(task.low, task.high).astype(np.float32)
        following, reward, terminated, *_ = env.step(action)
        rows.append((following if before is None else before, action, following, reward, terminated))
    env.close()
    return Transitions(*(np.array(column) for column in zip(*rows, strict=True)))


@pytest.fixture(params=list(TASKS))
def task(request):
    return TASKS[request.param]


@pytest.fixture
def transitions(task):
    return _collect(task.name)
