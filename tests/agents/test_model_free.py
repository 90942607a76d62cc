"""Agents without a model: on tasks so small that what they must learn is known."""

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box

import cdpo
from cdpo.agents import RULES, OffPolicy
from cdpo.errors import UserError

AGENTS = [name for name, rule in RULES.items() if issubclass(rule, OffPolicy)]
SMALL = {"sac": {"hidden": (16, 16), "learning_rate": 5e-3, "temperature": 0.1, "polyak": 0.05}}


class Delayed(gymnasium.Env):
    """Two steps: the first action is what the second observation shows, and is paid for then; 0.5 is best."""

    observation_space = Box(-2.0, 2.0, (2,), np.float32)
    action_space = Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.shown = None
        return np.float32([0.0, 0.0]), {}

    def step(self, action):
        if self.shown is None:
            self.shown = float(action[0])
            return np.float32([1.0, self.shown]), 0.0, False, False, {}
        return np.float32([1.0, self.shown]), -((self.shown - 0.5) ** 2), True, False, {}


class Steady(gymnasium.Env):
    """One for every step, for ever; or only three times."""

    observation_space = Box(-2.0, 2.0, (1,), np.float32)
    action_space = Box(-1.0, 1.0, (1,), np.float32)
    ends = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.float32([0.0]), {}

    def step(self, action):
        self.count += 1
        return np.float32([0.0]), 1.0, self.ends and self.count == 3, False, {}


class Short(Steady):
    ends = True


def agent(name, task, ratio, horizon, **changes):
    kinds = {kind.rule: kind for kind in (cdpo.SAC,)}
    return kinds[name](task, horizon=horizon, batch=32, ratio=ratio, **SMALL, **changes)


@pytest.mark.parametrize("name", AGENTS)
def test_it_finds_the_action_that_pays_a_step_later(name):
    made = agent(name, Delayed, ratio=20.0, horizon=2).learn(episodes=40)
    assert made.predict(np.float32([0.0, 0.0]), deterministic=True)[0] == pytest.approx(0.5, abs=0.15)


@pytest.mark.parametrize("name", AGENTS)
@pytest.mark.parametrize(("task", "value"), [(Steady, 1 / (1 - 0.8)), (Short, None)])
def test_a_time_limit_is_no_end(name, task, value):
    made = agent(name, task, ratio=40.0, horizon=5, loop={"discount": 0.8}).learn(episodes=15)
    last = made.records[-1]
    # Where the task ends at the third step, its three states cannot be told apart: the fixed point of their mean.
    expected = value or 1 / (1 - 0.8 * 2 / 3)
    entropy = last["temperature"] * 0.8 / (1 - 0.8) * np.log(2)  # more than what is still to come of it
    assert last["value"] == pytest.approx(expected, abs=0.1 * expected + entropy)


@pytest.mark.parametrize("name", AGENTS)
def test_updates_follow_the_steps_and_no_fraction_is_lost(name, tmp_path):
    made = agent(name, Delayed, ratio=0.3, horizon=2).learn(episodes=3)
    made.save(tmp_path / "saved")
    again = cdpo.load(tmp_path / "saved", task=Delayed).learn(episodes=3)
    made.learn(episodes=3)
    assert [record["updates"] for record in made.records if record["episode"] > 0] == [0, 1, 0, 1, 1, 0]

    def told(records):
        return repr([{key: value for key, value in record.items() if key != "wall_s"} for record in records])

    assert told(again.records) == told(made.records)


def test_it_says_that_it_has_no_model():
    with pytest.raises(UserError, match="sac learns without a model"):
        _ = cdpo.SAC("inverted-pendulum").model
    with pytest.raises(UserError, match="sac makes no use of the settings of dyna"):
        cdpo.SAC("inverted-pendulum", dyna={"horizon": 3})


@pytest.mark.parametrize(("changes", "word"), [({"batch": 0}, "replay.batch"), ({"ratio": 0.0}, "replay.ratio")])
def test_bad_settings_are_one_line(changes, word):
    with pytest.raises(UserError, match=word):
        cdpo.SAC("inverted-pendulum", **changes)
