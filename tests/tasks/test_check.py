"""The check of an environment finds what is wrong, and nothing where nothing is."""

import dataclasses

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box
from gymnasium.wrappers import TimeLimit

from cdpo.tasks import TASKS, check_task, find_task


class Faulty(gymnasium.Env):
    """An environment with one fault, by name."""

    observation_space = Box(-1, 1, (2,), np.float32)
    action_space = Box(-1, 1, (1,), np.float32)

    def __init__(self, fault=""):
        self.fault, self.hidden = fault, np.random.default_rng()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        draw = self.hidden if self.fault == "reset" else self.np_random
        self.place = draw.uniform(-0.1, 0.1, 2).astype(np.float32)
        return self.place, {}

    def step(self, action):
        noise = self.hidden.normal(scale=0.01) if self.fault == "noise" else 0.0
        self.place = np.clip(self.place + np.float32(0.1 * action[0] + noise), -1, 1)
        if self.fault == "raises":
            raise RuntimeError("the cable\nis loose")
        if self.fault == "outside":
            self.place = self.place + 3
        reward = np.nan if self.fault == "nan" else float(self.place[0])
        return self.place, reward, False, False, {}


def task_with(fault):
    return find_task(lambda: TimeLimit(Faulty(fault), 20))


def reward(s, a, following):
    return following[..., 0]


def test_our_tasks_are_well(task):
    report = check_task(find_task(task, horizon=60), episodes=2)
    assert report.ok, report.problems
    assert report.reward_error < 1e-5
    assert report.termination_errors == 0
    assert len(report.returns) == len(report.lengths) == 2
    assert report.steps == sum(report.lengths) + report.lengths[0]


def test_a_foreign_task_without_faults_is_well():
    report = check_task(task_with(""))
    assert report.ok
    assert report.reward_error is None
    assert report.termination_errors is None
    assert any("learned" in finding for finding in report.findings)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("reset", "another first observation"),
        ("noise", "another episode"),
        ("nan", "finite"),
        ("outside", "outside the observation space"),
        ("raises", "RuntimeError: the cable is loose"),
    ],
)
def test_faults_are_found(fault, says):
    report = check_task(task_with(fault))
    assert not report.ok
    assert any(says in problem for problem in report.problems)
    assert not any("\n" in problem for problem in report.problems)


def test_beliefs_that_are_wrong_are_found():
    right = dataclasses.replace(task_with(""), reward=reward)
    assert check_task(right).ok
    wrong = dataclasses.replace(right, reward=lambda s, a, following: s[..., 0])
    assert "differs" in check_task(wrong).problems[0]
    assert check_task(wrong).reward_error > 0.01
    ends = dataclasses.replace(right, terminates=lambda s, a, following: following[..., 0] > -9)
    assert check_task(ends).termination_errors == 60
    flat = dataclasses.replace(right, reward=lambda s, a, following: jnp.sum(following))
    assert "one number each" in check_task(flat).problems[0]
    broken = dataclasses.replace(right, reward=lambda s, a, following: 1.0 if following[0, 0] > 0 else 0.0)
    assert "reward failed: TracerBool" in check_task(broken).problems[0]
    kind = dataclasses.replace(right, terminates=lambda s, a, following: following[..., 0])
    assert "boolean" in check_task(kind).problems[0]


def test_an_episode_that_passes_its_horizon_is_found():
    longer = dataclasses.replace(TASKS["pendulum-swingup"], horizon=20)
    assert "goes on" in check_task(longer).problems[0]


def test_a_shared_environment_is_left_open():
    env = TimeLimit(Faulty(), 5)
    closed = []
    env.close = lambda: closed.append(True)
    assert check_task(find_task(env)).ok
    assert not closed
