"""What every learner must do, inside Dyna on models that are known exactly."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cdpo.dynamics.models import reference_model
from cdpo.dynamics.networks import Normaliser
from cdpo.errors import UserError
from cdpo.solvers.actor_critic import ActorCritic, ActorCriticSettings
from cdpo.solvers.base import Objective, Size, Trust
from cdpo.solvers.critics import state_values, twin_values
from cdpo.solvers.dyna import Dyna, DynaSettings
from cdpo.solvers.mpo import MPO, MPOSettings
from cdpo.solvers.offpolicy import OffPolicyLearner
from cdpo.solvers.policy import HostPolicy, Policy
from cdpo.solvers.ppo import PPO, PPOSettings
from cdpo.solvers.sac import SAC, SACSettings
from cdpo.solvers.trpo import TRPO, TRPOSettings
from cdpo.training.settings import LEARNERS

KEY = jax.random.key(0)
KINDS = {
    "sac": (SAC, SACSettings, {"temperature": 0.01}),
    "mpo": (MPO, MPOSettings, {"period": 5, "deviation_kl": 0.03, "mean_kl": 0.1, "temperature_rate": 0.03}),
    "ppo": (PPO, PPOSettings, {"epochs": 4, "minibatches": 5}),
    "trpo": (TRPO, TRPOSettings, {"kl": 0.03}),
    "actor-critic": (ActorCritic, ActorCriticSettings, {"minibatches": 8}),
}
every_learner = pytest.mark.parametrize("name", KINDS)


def made(name, **changes):
    learner, settings, own = KINDS[name]
    return learner(settings(**{"hidden": (16,), **own, **changes}))


def off_policy(name):
    return issubclass(KINDS[name][0], OffPolicyLearner)


def one(observation, action, following):
    return jnp.ones(observation.shape[:-1])


def low(observation, action, following):
    return following[..., 0] < 0.3


def test_these_are_all():
    assert set(KINDS) == set(LEARNERS)
    assert all(LEARNERS[name] is kind for name, (kind, *_) in KINDS.items())


# --- the whole


# --- probes


def solved(name, task, belief, starts, settings, *, discount, learner, seed=2):
    """A policy that began with no opinion, the learner's state and its metrics."""
    dyna = Dyna(settings, learner)
    policy = Policy.create(task, belief.ensemble.inputs, (16,), jax.random.key(seed))

    @jax.jit
    def solve(key):
        objective = Objective(discount, Trust.off(policy, 4))
        state = dyna.begin(policy, 1, key)
        models = reference_model(belief, 1)
        better, after, metrics = dyna(policy, models, objective, starts=starts, state=state, key=key)
        return better, after.learner, metrics

    return solve(KEY)


BUDGET = {
    "sac": {"rounds": 10, "updates": 40},
    "mpo": {"rounds": 10, "updates": 40},
    "ppo": {"rounds": 20},
    "trpo": {"rounds": 80, "particles": 32},  # with half of both what it finds depends on how sums are rounded
    "actor-critic": {"rounds": 60},
}


def steered_and_chosen(observation, action, following):
    """Best at zero, and with a second action of 0.3."""
    return -(following[..., 0] ** 2) - (action[..., 1] - 0.3) ** 2


@pytest.mark.slow
@every_learner
def test_on_an_exact_model_the_policy_finds_the_best_actions(linear_task, linear_belief, starts_at, name):
    task = linear_task(steered_and_chosen, actions=2)
    belief = linear_belief(task, [[[0.0], [0.5], [0.0]]])  # s' = s + a / 2
    settings = DynaSettings(**{"particles": 16, "horizon": 5, "batch": 32, "real": 0.0} | BUDGET[name])
    starts = starts_at([[0.0]], weights=(0.0, 0.0, 1.0), low=-1.0, high=1.0, actions=2)
    learner = made(name, learning_rate=5e-3)
    policy, _, metrics = solved(name, task, belief, starts, settings, discount=0.8, learner=learner)
    act, state = HostPolicy(policy), np.array([[-0.8], [0.8]])
    action = act(state)
    assert action[0, 0] > 0.4
    assert action[1, 0] < -0.4
    np.testing.assert_allclose(act(np.array([[-0.5], [0.0], [0.5]]))[:, 1], 0.3, atol=0.2)
    for _ in range(10):
        state = state + 0.5 * act(state)[:, :1]
    assert np.all(np.abs(state) < 0.25)
    if name in ("ppo", "trpo", "actor-critic"):
        assert metrics["log_deviation"] == pytest.approx(np.log(0.2), abs=0.2)  # held
    if name == "mpo":
        assert np.log(0.2) - 0.2 < metrics["log_deviation"] < np.log(0.7)  # not lost, and less than at the beginning


@pytest.mark.slow(besides="ppo, ends")
@pytest.mark.parametrize(
    ("name", "ends"),
    [
        pytest.param(name, ends, id=f"{name}, {'ends' if ends else 'goes on'}")
        for name in KINDS
        for ends in (False, True)
    ],
)
def test_values_go_on_behind_a_rollout_and_nothing_follows_an_end(linear_task, linear_belief, starts_at, name, ends):
    """One for every step, of states 1, 0.5 and so on; for ever, or until 0.25 is reached."""
    task = linear_task(one, low) if ends else linear_task(one)
    belief = linear_belief(task, [[[-0.5 if ends else 0.0], [0.0]]])
    settings = DynaSettings(**{"particles": 8, "horizon": 4, "batch": 32, "real": 0.0} | BUDGET[name])
    learner = made(name, learning_rate=0.02, **({"polyak": 0.1} if off_policy(name) else {}))
    policy, state, _ = solved(name, task, belief, starts_at([[1.0]]), settings, discount=0.8, learner=learner)
    places = jnp.array([[[1.0], [0.5]]])  # of the one model
    if off_policy(name):
        said = jnp.mean(twin_values(state.critics, policy, places, jnp.zeros((1, 2, 1))), axis=1)[0]
    else:
        said = state_values(state.critics, policy, places[None])[0, 0]
    expected = [1.8, 1.0] if ends else [5.0]
    np.testing.assert_allclose(said[: len(expected)] * state.scale, expected, rtol=0.1)


# --- the rest


@every_learner
def test_values_survive_another_normaliser_and_another_size_of_rewards(linear_task, some_policy, name):
    learner, policy = made(name), some_policy(linear_task(one))
    new = policy.renormalised(Normaliser(jnp.array([3.0]), jnp.array([0.2])))
    state = learner.begin(policy, 2, KEY)
    again = learner.renormalised(state, policy, new, Size(reward=jnp.asarray(5.0), value=jnp.asarray(40.0)))
    scale = 5 if off_policy(name) else 40  # of what an entropy is weighed against; or of values themselves
    places = jnp.linspace(-2, 2, 6).reshape(2, 3, 1)

    def said(state, policy):
        if off_policy(name):
            return twin_values(state.critics, policy, places, places)
        return state_values(state.critics, policy, places[None])

    np.testing.assert_allclose(said(state, policy), scale * said(again, new), rtol=1e-3, atol=1e-4)
    assert again.scale == scale


@every_learner
@pytest.mark.parametrize("critic", ["per-model", "pooled"])
def test_critics_are_one_for_each_model_or_one_for_all(linear_task, some_policy, name, critic):
    state = made(name, critic=critic).begin(some_policy(linear_task(one)), 3, KEY)
    assert state.critics.weights[0].shape[0] == {"per-model": 3, "pooled": 1}[critic]


@pytest.mark.parametrize(
    ("name", "wrong", "word"),
    [
        ("sac", {"polyak": 1.5}, "sac.polyak must be in (0, 1]"),
        ("sac", {"critic_steps": 0}, "sac.critic_steps must be at least 1"),
        ("mpo", {"samples": 0}, "mpo.samples must be at least 1"),
        ("mpo", {"period": 0}, "mpo.period must be at least 1"),
        ("mpo", {"kl": 0.0}, "mpo.kl must be above 0"),
        ("ppo", {"epochs": 0}, "ppo.epochs must be at least 1"),
        ("ppo", {"minibatches": 0}, "ppo.minibatches must be at least 1"),
        ("ppo", {"clip": -0.1}, "ppo.clip must be above 0"),
        ("trpo", {"directions": 0}, "trpo.directions must be at least 1"),
        ("trpo", {"kl": 0.0}, "trpo.kl must be above 0"),
        ("ppo", {"trace": 1.1}, "ppo.trace must be in (0, 1]"),
        ("actor-critic", {"deviation": 0.0}, "actor_critic.deviation must be above 0"),
        ("actor-critic", {"critic": "pooling"}, "did you mean 'pooled'"),
    ],
)
def test_settings_outside_their_range_are_told_in_one_line(name, wrong, word):
    with pytest.raises(UserError) as told:
        made(name, **wrong)
    assert word in str(told.value) and "\n" not in str(told.value)
