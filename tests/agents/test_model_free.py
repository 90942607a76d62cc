"""Agents without a model, on tasks so small that what they must learn is known; agents with one learn the same."""

from functools import cache
from itertools import pairwise

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box

import cdpo
from cdpo.agents import RULES, Exploration, OffPolicy, OnPolicy
from cdpo.agents.newest import Newest, leads_on
from cdpo.api import AGENTS
from cdpo.dynamics.networks import Normaliser
from cdpo.dynamics.replay import Replay, Transition
from cdpo.errors import UserError
from cdpo.solvers.base import Starts
from cdpo.solvers.policy import Policy
from cdpo.solvers.ppo import PPO, PPOSettings
from cdpo.tasks import find_task
from cdpo.training.lanes import stack
from cdpo.training.presets import preset

NAMES = [name for name, rule in RULES.items() if not issubclass(rule, Exploration)]
REPLAYING = [name for name in NAMES if issubclass(RULES[name], OffPolicy)]
NEWEST = [name for name in NAMES if issubclass(RULES[name], OnPolicy)]
every_agent = pytest.mark.parametrize("name", NAMES)

SMALL = {"hidden": (16, 16), "learning_rate": 5e-3}
OWN = {
    "sac": {"temperature": 0.1, "polyak": 0.05},
    "mpo": {"polyak": 0.05, "period": 10, "samples": 8, "mean_kl": 0.1, "deviation_kl": 0.01},
    "ppo": {"epochs": 10, "minibatches": 4},
}


pytestmark = pytest.mark.usefixtures("compiled_soon")


def test_these_are_all():
    assert set(OWN) == set(NAMES) == {*REPLAYING, *NEWEST}


class Delayed(gymnasium.Env):
    """By turns: an action is what the next observation shows, and is paid for a step later; 0.5 is best."""

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
        paid, self.shown = -((self.shown - 0.5) ** 2), None
        return np.float32([0.0, 0.0]), paid, False, False, {}


class Shown(gymnasium.Env):
    """The best action is minus half of what is seen."""

    observation_space = Box(-2.0, 2.0, (1,), np.float32)
    action_space = Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seen = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self.seen, {}

    def step(self, action):
        paid = -float((action[0] + self.seen[0] / 2) ** 2)
        self.seen = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self.seen, paid, False, False, {}


class Steady(gymnasium.Env):
    """One for every step until the time limit, or only three times; it counts to four, to be cut where it has been."""

    observation_space = Box(-2.0, 2.0, (1,), np.float32)
    action_space = Box(-1.0, 1.0, (1,), np.float32)
    ends = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.float32([0.0]), {}

    def step(self, action):
        self.count += 1
        return np.float32([self.count % 4 / 5]), 1.0, self.ends and self.count == 3, False, {}


class Short(Steady):
    ends = True


the = cache(find_task)  # programs are compiled once for a task


def agent(name, kind, *, much=20.0, steps=64, horizon, **changes):
    """That learns `much` for each step, or from so many `steps` at once."""
    how = {"batch": 32, "ratio": much} if name in REPLAYING else {"steps": steps}
    return AGENTS[name](the(kind, horizon=horizon), **{name: SMALL | OWN[name]}, **how, **changes)


def told(records):
    return repr([{key: value for key, value in record.items() if key != "wall_s"} for record in records])


# --- what they learn

EPISODES = dict.fromkeys(REPLAYING, 3) | dict.fromkeys(NEWEST, 60)
QUIET = {"loop": {"evaluate": 10**6, "evaluation_episodes": 1}}


@pytest.mark.slow
@every_agent
def test_it_finds_the_action_that_pays_a_step_later(name):
    made = agent(name, Delayed, horizon=64, **QUIET).learn(EPISODES[name])
    assert made.predict(np.float32([0.0, 0.0]), deterministic=True)[0] == pytest.approx(0.5, abs=0.15)


@pytest.mark.slow
@every_agent
def test_it_finds_an_action_for_what_it_sees(name):
    made = agent(name, Shown, horizon=64, **QUIET).learn(EPISODES[name])
    seen = np.float32([[-0.8], [0.0], [0.8]])
    np.testing.assert_allclose(made.predict(seen, deterministic=True)[0], -seen / 2, atol=0.2)


BY_MODELS = [name for name, rule in RULES.items() if issubclass(rule, Exploration)]
FEW = {
    "sac": {**SMALL, "learning_rate": 3e-3},
    "trpo": {"hidden": (16, 16)},
    "mpc": {"hidden": (16, 16), "horizon": 4},
}


def by_models(name, kind):
    """An agent that learns the rewards of the same tasks, in twelve episodes of 32 steps."""
    uses = preset("default", the(kind, horizon=32), name).parts
    few = {part: told for part, told in FEW.items() if part in uses}
    if "dyna" in uses:
        few["dyna"] = {"particles": 16, "horizon": 10} if "trpo" in uses else {"particles": 16, "updates": 50}
    loop = {"discount": 0.9, **QUIET["loop"]}
    return AGENTS[name](the(kind, horizon=32), ensemble={"hidden": (16, 16), "steps": 200}, loop=loop, **few).learn(12)


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_MODELS)
def test_so_do_agents_with_a_model_the_action_that_pays_a_step_later(name):
    made = by_models(name, Delayed)
    assert made.predict(np.float32([0.0, 0.0]), deterministic=True)[0] == pytest.approx(0.5, abs=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_MODELS)
def test_so_do_agents_with_a_model_an_action_for_what_they_see(name):
    seen = np.float32([[-0.8], [0.0], [0.8]])
    np.testing.assert_allclose(by_models(name, Shown).predict(seen, deterministic=True)[0], -seen / 2, atol=0.2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "task", "value"),
    [
        pytest.param(name, task, value, id=f"{name}, {task.__name__}")
        for name in NAMES
        for task, value in ((Steady, 1 / (1 - 0.8)), (Short, np.mean([2.44, 1.8, 1.0])))
    ],
)
def test_a_time_limit_is_no_end(name, task, value):
    loop = {"discount": 0.8, "evaluation_episodes": 1}
    made = agent(name, task, much=40.0, steps=15, horizon=5, loop=loop).learn(15 if name in REPLAYING else 120)
    last = made.records[-1]
    # More than what is still to come of it, where entropy counts.
    entropy = last["temperature"] * 0.8 / (1 - 0.8) * np.log(2) if name == "sac" else 0.0
    assert last["value"] == pytest.approx(value, abs=0.1 * value + entropy)


# --- when they learn


@pytest.mark.slow
@every_agent
def test_loaded_again_it_goes_on_to_the_same_bits(name, tmp_path):
    made = agent(name, Delayed, much=0.3, steps=5, horizon=2, **QUIET).learn(4)
    made.save(tmp_path / "saved")
    again = cdpo.load(tmp_path / "saved", task=the(Delayed, horizon=2)).learn(4)
    made.learn(4)
    assert {record["updates"] for record in made.records[5:]} == {0, 1}
    assert told(again.records) == told(made.records)


@pytest.mark.slow(besides="sac")
@pytest.mark.parametrize("name", REPLAYING)
def test_updates_follow_the_steps_and_no_fraction_is_lost(name):
    made = agent(name, Delayed, much=0.3, horizon=2, **QUIET).learn(6)
    assert [record["updates"] for record in made.records if record["episode"] > 0] == [0, 1, 0, 1, 1, 0]


@pytest.mark.parametrize("name", NEWEST)
def test_an_iteration_is_as_many_episodes_as_give_its_steps_and_the_random_one_is_in_none(name):
    made = agent(name, Delayed, steps=5, horizon=2, **QUIET)  # six, in whole episodes
    policies, minds, compiled = [], [], set()
    for _ in range(8):
        made.learn(1)
        compiled.add(Newest.learn._cache_size())
        minds.append(made._trainer.mind(0))
        policies.append(minds[-1].policy.net.biases[-1])
    assert [record["updates"] for record in made.records if record["episode"] > 0] == [0, 0, 0, 1, 0, 0, 1, 0]
    assert [int(mind.rows) for mind in minds] == [2, 2, 2, 8, 8, 8, 14, 14]
    moved = [bool(np.any(after != before)) for before, after in pairwise(policies)]
    assert moved == [False, False, True, False, False, True, False]
    assert len(compiled) == 1  # one program, due or not
    between, due = made.records[5], made.records[4]
    assert all(between[key] == due[key] for key in ("value", "critic_loss", "clipped", "learning_rate"))


@pytest.mark.slow
@pytest.mark.parametrize("name", NEWEST)
def test_random_episodes_are_in_no_iteration_however_many_there_are(name):
    made = agent(name, Delayed, steps=2, horizon=2, loop={**QUIET["loop"], "random": 3}).learn(4)
    assert [record.get("updates") for record in made.records] == [None, None, None, 0, 1]
    assert int(made._trainer.mind(0).rows) == 8


@pytest.mark.slow
@pytest.mark.parametrize("name", NEWEST)
def test_networks_see_z_scores_of_all_data(name):
    made = agent(name, Shown, steps=4, horizon=1, **QUIET)
    for episodes, count in ((1, 1), (3, 1), (1, 5)):
        made.learn(episodes)
        seen = made._trainer.rows()[0][:count, :1]
        inputs = made._trainer.mind(0).policy.inputs
        np.testing.assert_allclose(inputs.mean, np.mean(seen, axis=0), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(inputs.deviation, np.std(seen, axis=0) if count > 1 else 1.0, rtol=1e-4)


@pytest.mark.parametrize("name", NEWEST)
def test_hidden_layers_are_those_of_the_authors(name):
    mind = agent(name, Delayed, horizon=2, **QUIET)._trainer.mind(0)
    assert mind.policy.net.activation == mind.learner.critics.activation == "tanh"


@pytest.mark.parametrize("name", NEWEST)
def test_the_learning_rate_falls_to_zero_and_learning_ends(name):
    made = agent(name, Delayed, steps=5, horizon=2, annealed=16.0, **QUIET).learn(3)
    nets, rates = [], []
    for _ in range(3):
        made.learn(3)
        nets.append(made._trainer.mind(0).policy.net.biases[-1])
        rates.append(made.records[-1]["learning_rate"])
    np.testing.assert_allclose(rates, [5e-3 / 2, 5e-3 / 8, 0], rtol=1e-5)
    assert np.any(nets[1] != nets[0])
    np.testing.assert_array_equal(nets[2], nets[1])


@pytest.mark.slow
@every_agent
def test_seeds_in_one_program_learn_as_they_do_alone(name, compiled_well):
    # With no optimisation at all, XLA on a CPU spoils a loop whose lengths differ by seed.
    """Side by side they are mapped over; the second has too little to learn from yet, if it must be the newest."""
    task = find_task(Shown, horizon=4)
    how = {"steps": 8} if name in NEWEST else {"batch": 4}
    made = (
        preset("default", task, name).changed(**{name: {"hidden": (4,), "learning_rate": 1e-2}}, rule=how).agent(task)
    )
    keys = jax.random.split(jax.random.key(0), 2)
    one = jnp.ones((), jnp.int32)  # random step, before those of the policy
    minds = [made.begin((4,), key)._replace(rows=one) for key in keys]
    full = jnp.asarray(np.random.default_rng(0).uniform(-0.9, 0.9, (2, 16, 6)), jnp.float32).at[..., -2:].set(0.0)
    replays = [Replay(rows, jnp.asarray(size, jnp.int32), 1, 1) for rows, size in zip(full, (10, 7), strict=True)]
    starts, second = Starts(jnp.zeros((1, 1)), replays[0], *jnp.zeros((2, 1)), jnp.ones(3)), jnp.asarray(2)

    def learn(mind, replay, key):
        return made.learn(mind, replay, starts, second, key)

    alone = [learn(*each) for each in zip(minds, replays, keys, strict=True)]
    together = jax.vmap(learn)(stack(minds), stack(replays), keys)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-4)  # noqa: E731
    jax.tree.map(close, together, stack(alone))
    assert [int(metrics["updates"]) for _, metrics in alone] == ([1, 0] if name in NEWEST else [9, 6])


# --- advantages across episodes


def test_advantages_stop_at_ends_and_bootstrap_at_cuts(monkeypatch):
    """Five rows by hand: an end after the second, a time limit after the fourth, and a fifth of a third episode."""
    seen = np.float32([0.0, 1.0, 0.5, 1.5, 0.25])
    following = np.float32([1.0, 2.0, 1.5, 2.5, 1.25])
    ended = np.float32([0, 1, 0, 0, 0])
    reward = np.float32([1, 2, 3, 4, 5])
    grid = lambda x: jnp.asarray(x)[:, None, None]  # noqa: E731
    taken = Transition(
        grid(seen)[..., None], jnp.zeros((5, 1, 1, 1)), grid(reward), grid(following)[..., None], grid(ended)
    )
    leads = leads_on(taken)
    np.testing.assert_array_equal(leads.ravel(), [1, 0, 1, 0, 0])

    # V(s) = s, discount 0.5, lambda 0.8.
    monkeypatch.setattr("cdpo.solvers.onpolicy.state_values", lambda critics, policy, states: states[..., 0])
    learner = PPO(PPOSettings(hidden=(4,), trace=0.8))
    policy = Policy.create(the(Steady, horizon=5), Normaliser.identity(1), (4,), jax.random.key(0))
    state = learner.begin(policy, 1, jax.random.key(0))
    _, judged = learner._judged(policy, state, taken, 0.5, leads)
    delta = [1 + 0.5 * 1.0 - 0.0, 2 - 1.0, 3 + 0.5 * 1.5 - 0.5, 4 + 0.5 * 2.5 - 1.5, 5 + 0.5 * 1.25 - 0.25]
    expected = [delta[0] + 0.4 * delta[1], delta[1], delta[2] + 0.4 * delta[3], delta[3], delta[4]]
    np.testing.assert_allclose(judged.advantage.ravel(), expected, rtol=1e-6)


# --- what they refuse


@pytest.mark.slow(besides="ppo")
@every_agent
def test_it_says_that_it_has_no_model(name):
    with pytest.raises(UserError, match=f"{name} learns without a model"):
        _ = AGENTS[name]("inverted-pendulum").model
    with pytest.raises(UserError, match=f"{name} makes no use of the settings of dyna"):
        AGENTS[name]("inverted-pendulum", dyna={"horizon": 3})


@pytest.mark.parametrize(
    ("name", "changes", "word"),
    [
        ("sac", {"batch": 0}, "replay.batch must be at least 1"),
        ("mpo", {"ratio": 0.0}, "replay.ratio must be above 0"),
        ("mpo", {"steps": 3}, "unknown setting of replay 'steps'"),
        ("mpo", {"sac": {"polyak": 0.1}}, "mpo makes no use of the settings of sac"),
        ("ppo", {"steps": 0}, "newest.steps must be at least 1"),
        ("ppo", {"annealed": 0.0}, "newest.annealed must be above 0"),
        ("ppo", {"batch": 3}, "unknown setting of newest 'batch'"),
        ("ppo", {"ppo": {"gradient": 0.0}}, "ppo.gradient must be above 0"),
        ("ppo", {"ppo": {"noise": "learnt"}}, "did you mean 'learned'"),
    ],
)
def test_bad_settings_are_one_line(name, changes, word):
    with pytest.raises(UserError) as told:
        AGENTS[name]("inverted-pendulum", **changes)
    assert word in str(told.value) and "\n" not in str(told.value)


def test_ppo_begins_with_orthogonal_layers_tanh_between_and_a_policy_that_says_next_to_nothing():
    made = preset("default", find_task("pendulum-swingup"), "ppo").agent(find_task("pendulum-swingup"))
    mind = made.begin((16, 8), jax.random.key(0))
    critic = jax.tree.map(lambda leaf: leaf.reshape(leaf.shape[-2:]), list(mind.learner.critics.weights))
    for weights, last in ((list(mind.policy.net.weights), 0.01), (critic, 1.0)):
        for number, weight in enumerate(np.asarray(each, np.float64) for each in weights):
            gram = weight.T @ weight if weight.shape[0] >= weight.shape[1] else weight @ weight.T
            gain = last if number == 2 else np.sqrt(2)
            np.testing.assert_allclose(gram, gain**2 * np.eye(len(gram)), atol=1e-5)
    assert mind.policy.net.activation == mind.learner.critics.activation == "tanh"
