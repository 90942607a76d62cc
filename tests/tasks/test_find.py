"""What a user may give as a task, and what is said of what cannot be one."""

import dataclasses

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from gymnasium.wrappers import FlattenObservation, RescaleAction, TimeLimit

from cdpo.errors import UserError
from cdpo.tasks import TASKS, find_task

UNIT = Box(-1, 1, (2,), np.float32)


class Own(gymnasium.Env):
    """A user's environment, unknown to Gymnasium: the mean of the actions moves a point."""

    def __init__(self, seen=UNIT, acted=UNIT, render_mode=None):
        self.observation_space, self.action_space, self.render_mode = seen, acted, render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = np.zeros(2, np.float32)
        return self.place, {}

    def step(self, action):
        self.place = np.clip(self.place + 0.1 * np.asarray(action, np.float32), -1, 1)
        return self.place, 0.0, False, False, {}


class Plain(gymnasium.Wrapper):
    """A wrapper that does not say how it was made."""


def length(env):
    env.reset(seed=0)
    for step in range(1, 2000):
        *_, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            return step
    raise AssertionError("the episode does not end")


def test_a_name_gives_the_task_itself():
    assert find_task("pusher") is TASKS["pusher"]
    assert find_task(TASKS["pusher"]) is TASKS["pusher"]


@pytest.mark.parametrize("id", ["cdpo/Pusher-v0", "cdpo/Pusher", "cdpo.tasks:cdpo/Pusher-v0"])
def test_the_id_of_one_of_our_environments_gives_its_task(id):
    assert find_task(id) is TASKS["pusher"]


def test_one_of_our_environments_gives_its_task_with_what_it_was_made_with():
    assert find_task(gymnasium.make("cdpo/HalfCheetah-v0", disable_env_checker=True)) is TASKS["half-cheetah"]
    assert find_task(gymnasium.make("cdpo/PendulumSwingup-v0", penalty=0.2)) is TASKS["pendulum-swingup-0.2"]
    odd = find_task(gymnasium.make("cdpo/PendulumSwingup-v0", penalty=0.5, max_episode_steps=7))
    assert odd.make().unwrapped.penalty == 0.5
    assert odd.reward(jnp.zeros(2), jnp.ones(1), jnp.array([np.pi, 0])) == pytest.approx(-0.5)
    assert odd.horizon == length(odd.make()) == 7


def test_one_of_our_environments_wrapped_is_a_foreign_one():
    wrapped = RescaleAction(gymnasium.make("cdpo/InvertedPendulum-v0"), np.float32(-1), np.float32(1))
    task = find_task(wrapped)
    assert task.reward is None
    assert task.high == 1
    assert task.make().action_space.high == 1


def test_a_gymnasium_id_gives_a_task_whose_reward_is_to_be_learned():
    task = find_task("Pendulum-v1")
    assert (task.name, task.observations, task.actions, task.horizon) == ("Pendulum-v1", 3, 1, 200)
    assert task.reward is None
    assert task.terminates is None
    assert not task.shared
    assert task.make() is not task.make()
    assert length(task.make()) == 200


def test_a_newer_or_missing_version_is_no_error():
    # Gymnasium warns of both, and warnings are errors here
    assert find_task("Pendulum").name == "Pendulum-v1"
    gymnasium.register("Aged-v0", entry_point=Own, max_episode_steps=5)
    gymnasium.register("Aged-v1", entry_point=Own, max_episode_steps=5)
    try:
        assert length(find_task("Aged-v0").make()) == 5
    finally:
        del gymnasium.registry["Aged-v0"], gymnasium.registry["Aged-v1"]


def test_reward_termination_and_horizon_may_be_given():
    def reward(s, a, following):
        return following[..., 0]

    def terminates(s, a, following):
        return following[..., 0] > 1

    task = find_task("Pendulum-v1", reward=reward, terminates=terminates, horizon=50)
    assert task.reward is reward
    assert task.terminates is terminates
    assert task.horizon == length(task.make()) == 50
    own = find_task("half-cheetah", horizon=30)
    assert own.horizon == length(own.make()) == 30
    assert own.reward is TASKS["half-cheetah"].reward
    longer = find_task("pendulum-swingup", horizon=500)
    assert longer.horizon == length(longer.make()) == 500
    given = find_task(dataclasses.replace(TASKS["pendulum-swingup"], make=lambda render_mode=None: Own()), horizon=9)
    assert given.horizon == length(given.make()) == 9


def test_an_environment_is_built_again_by_its_spec():
    env = gymnasium.make("Pendulum-v1", g=5.0, render_mode="rgb_array", max_episode_steps=40)
    task = find_task(env)
    copy = task.make()
    assert not task.shared
    assert copy is not env
    assert (copy.unwrapped.g, copy.render_mode, task.horizon) == (5.0, None, 40)
    assert task.make(render_mode="rgb_array").render_mode == "rgb_array"
    flat = find_task(FlattenObservation(gymnasium.make("Pendulum-v1")))
    assert isinstance(flat.make(), FlattenObservation)


def test_an_environment_that_cannot_be_built_again_is_shared():
    env = TimeLimit(Own(), 6)
    task = find_task(env)
    assert task.shared
    assert task.make() is task.make() is env
    assert (task.name, task.horizon) == ("Own", 6)
    shorter = find_task(env, horizon=4)
    assert shorter.make() is shorter.make()
    assert length(shorter.make()) == shorter.horizon == 4
    unlimited = find_task(Own(), horizon=8)
    assert unlimited.make() is unlimited.make()
    assert length(unlimited.make()) == 8


def test_a_wrapper_that_does_not_say_how_it_was_made_is_shared():
    env = Plain(gymnasium.make("Pendulum-v1"))
    assert find_task(env).shared
    assert find_task(env).make() is env


def test_a_factory_makes_each_environment():
    task = find_task(lambda: TimeLimit(Own(), 12))
    assert not task.shared
    assert task.make() is not task.make()
    assert task.horizon == 12
    assert length(find_task(Own, horizon=5).make()) == 5
    assert find_task(Own, horizon=5).make(render_mode="rgb_array").render_mode == "rgb_array"
    with pytest.raises(UserError, match="render_mode"):
        task.make(render_mode="rgb_array")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("half-cheeta", "did you mean 'half-cheetah'"),
        ("HalfCheeta-v5", "did you mean 'HalfCheetah-v5'"),
        ("cdpo/HalfCheetah-v7", "did you mean 'cdpo/HalfCheetah-v0'"),
        ("nothing like it", "known: inverted-pendulum"),
        ("a:b:c", "cannot import"),
        ("no_such_module_here:Env-v0", "cannot import"),
        ("", "unknown task"),
        ("Pusher-v4", "cannot make Pusher-v4"),
        (3, "not a int"),
        (lambda: 3, "must return a gymnasium.Env"),
        ("CartPole-v1", "continuous actions"),
        ("FrozenLake-v1", "FlattenObservation"),
        (lambda: Own(seen=Dict(a=UNIT)), "FlattenObservation"),
        (lambda: Own(seen=Box(0, 1, (4, 4))), "FlattenObservation"),
        (lambda: Own(seen=Discrete(4)), "FlattenObservation"),
        (lambda: Own(acted=MultiDiscrete([2, 2])), "continuous actions"),
        (lambda: Own(acted=Box(0, 3, (2,), np.int64)), "continuous actions"),
        (lambda: Own(acted=Box(-1, 1, (2, 2))), "TransformAction"),
        (lambda: Own(acted=Box(-np.inf, np.inf, (2,))), "without bounds"),
        (lambda: Own(acted=Box(1, 1, (2,))), "no choice"),
        (lambda: Own(acted=Box(-1, 1, (0,))), "no actions"),
        (lambda: Own(seen=Box(-1, 1, (0,))), "no observations"),
        (Own, "give horizon"),
        (Own(), "give horizon"),
    ],
)
def test_what_cannot_be_a_task_is_said_in_one_line(given, says):
    with pytest.raises(UserError) as caught:
        find_task(given)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_vector_of_environments_is_refused():
    envs = gymnasium.make_vec("Pendulum-v1", num_envs=2)
    with pytest.raises(UserError, match="single environment"):
        find_task(envs)
    envs.close()


@pytest.mark.parametrize("horizon", [0, -3, 2.5, True, 10**6 + 1, 2 * 10**8])
def test_a_horizon_that_is_none_is_refused(horizon):
    with pytest.raises(UserError, match="horizon"):
        find_task("pusher", horizon=horizon)


def test_a_horizon_beyond_a_limit_that_cannot_be_lifted_is_refused():
    with pytest.raises(UserError, match="longer time limit"):
        find_task(TimeLimit(Own(), 6), horizon=10)


def test_an_environment_with_endless_episodes_needs_a_horizon():
    with pytest.raises(UserError, match="200000000 steps; give horizon, at most 1000000"):
        find_task(lambda: TimeLimit(Own(), 2 * 10**8))
