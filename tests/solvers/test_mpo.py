"""MPO: its dual, its two halves, and the policy that proposes."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdpo.dynamics.networks import Normaliser
from cdpo.dynamics.replay import Experience
from cdpo.solvers.base import Objective, Size, Trust
from cdpo.solvers.critics import twin_values
from cdpo.solvers.mpo import MPO, MPOSettings, temperature_dual
from cdpo.solvers.policy import kl_divergence

KEY = jax.random.key(0)
M, B = 2, 16


def free(observation, action, following):
    return jnp.zeros(observation.shape[:-1])


@pytest.fixture(scope="module")
def policy(linear_task, some_policy):
    return some_policy(linear_task(free))


def some_batch(seed=0):
    rng = np.random.default_rng(seed)
    draw = lambda *tail: jnp.asarray(rng.normal(size=(1, M, B, *tail)), jnp.float32)  # noqa: E731
    return Experience(draw(1), jnp.tanh(draw(1)), draw(), draw(1), jnp.full((1, M, B), 0.9), jnp.ones((1, M, B)))


@jax.jit
def several(learner, policy, state, keys):
    """Numbers of the settings are values: one program serves them all."""
    objective = Objective(0.9, Trust.off(policy, 4))

    def step(carry, key):
        policy, state, metrics = learner.update(*carry, some_batch(), objective, key)
        return (policy, state), metrics

    return jax.lax.scan(step, (policy, state), keys)


def updated(learner, policy, times, state=None):
    """After updates on the same batch, with metrics of each."""
    state = learner.begin(policy, M, KEY) if state is None else state
    (policy, state), metrics = several(learner, policy, state, jax.random.split(KEY, times))
    return policy, state, metrics


@settings(derandomize=True, max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.sampled_from([0.01, 1.0, 100.0]), bound=st.sampled_from([0.03, 0.1, 0.5]))
def test_at_the_best_temperature_the_weighed_actions_are_the_bound_away(seed, size, bound):
    value = jnp.asarray(size * np.random.default_rng(seed).normal(size=(20, 6)))
    grid = jnp.exp(jnp.linspace(-8, 8, 4000)) * size
    best = grid[jnp.argmin(jax.vmap(lambda each: temperature_dual(each, value, bound))(grid))]
    share = np.asarray(jax.nn.softmax(value / best, axis=0), np.float64)
    far = np.mean(np.sum(share * np.log(np.maximum(share * 20, 1e-30)), axis=0))
    assert far == pytest.approx(bound, rel=0.05)


@pytest.mark.parametrize(("temperature", "direction"), [(1e-3, 1), (1e3, -1)])
def test_the_temperature_moves_to_where_the_bound_is(policy, temperature, direction):
    learner = MPO(MPOSettings(hidden=(8,), temperature=temperature))
    begun = learner.begin(policy, M, KEY)
    _, after, _ = updated(learner, policy, 1)
    assert np.sign(after.log_temperature - begun.log_temperature) == direction


def test_means_and_deviations_move_no_further_than_each_may(policy):
    tight = MPO(MPOSettings(hidden=(8,), learning_rate=0.01, period=1000, mean_kl=1e-4, deviation_kl=0.1, kl=1.0))
    _, after, metrics = updated(tight, policy, 400)
    late = slice(-100, None)
    assert np.mean(metrics["mean_kl"][late]) < 1e-3
    assert np.mean(metrics["deviation_kl"][late]) > 1e-3  # the other half is free
    assert after.log_weights[0] > after.log_weights[1]


def test_the_weights_of_both_movements_follow_their_excess_by_their_rate(policy):
    bounds = {"mean_kl": 2e-5, "deviation_kl": 1e-5}
    learner = MPO(MPOSettings(hidden=(8,), period=3, weight_rate=0.3, **bounds))
    _, after, metrics = updated(learner, policy, 2)
    excess = np.stack([np.clip(metrics[name] / bound - 1, -1, 1) for name, bound in bounds.items()])
    np.testing.assert_array_equal(excess[:, 0], -1)  # nothing has moved before the first update
    assert -1 < excess[1, 1] < 0 < excess[0, 1] < 1
    np.testing.assert_allclose(after.log_weights, 0.3 * excess.sum(axis=1), rtol=1e-4, atol=1e-6)


def test_the_policy_fits_weighed_proposals_with_its_means_and_its_deviations_apart(policy):
    told = MPOSettings(hidden=(8,), samples=5, period=1000, temperature=0.7, deviation=0.9)
    learner, batch = MPO(told), jax.tree.map(lambda leaf: leaf[0], some_batch())
    state = learner.begin(policy, M, KEY)
    state = state._replace(
        proposing=jax.tree.map(lambda leaf: leaf + 0.1, policy.net), log_weights=jnp.array([0.3, -0.4])
    )
    objective = Objective(0.9, Trust.off(policy))
    _, after, _ = jax.jit(lambda: learner.update(policy, state, some_batch(), objective, KEY))()
    taken = jax.tree.map(lambda moment: moment / 0.1, after.policy_optimiser[0].mu)  # Adam's, after one gradient

    old = eqx.tree_at(lambda p: p.net, policy, state.proposing)(batch.observation)
    raw = old.mean + jnp.exp(old.log_deviation) * jax.random.normal(jax.random.split(KEY, 3)[1], (5, M, B, 1))
    worse = [jnp.min(twin_values(after.critics, policy, batch.observation, jnp.tanh(each)), axis=1) for each in raw]
    share = np.exp(np.stack(worse) / 0.7)
    share = share / share.sum(axis=0)
    noise = jnp.exp(old.log_deviation)

    def by_hand(net):
        here = eqx.tree_at(lambda p: p.net, policy, net)(batch.observation)
        deviation = jnp.exp(here.log_deviation)
        means = -0.5 * ((raw - here.mean) / noise) ** 2
        deviations = -0.5 * ((raw - old.mean) / deviation) ** 2 - jnp.log(deviation)
        fit = jnp.mean(jnp.sum(share[..., None] * (means + deviations), axis=0))
        apart = jnp.mean(0.5 * ((here.mean - old.mean) / noise) ** 2)
        wider = jnp.mean(jnp.log(deviation / noise) + 0.5 * (noise / deviation) ** 2 - 0.5)
        least = jnp.mean(jnp.maximum(jnp.log(0.9) - here.log_deviation, 0.0) ** 2)
        return jnp.exp(0.3) * apart + jnp.exp(-0.4) * wider + 10 * least - fit

    expected = jax.grad(by_hand)(policy.net)
    for one, other in zip(jax.tree.leaves(taken), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def test_the_policy_that_proposes_rests_for_a_period_and_is_then_the_learned_one(policy):
    learner = MPO(MPOSettings(hidden=(8,), period=3))
    moved, state, _ = updated(learner, policy, 2)
    jax.tree.map(np.testing.assert_array_equal, state.proposing, policy.net)
    assert state.updates == 2
    again = learner.fresh(moved, state)
    jax.tree.map(np.testing.assert_array_equal, again.proposing, moved.net)
    assert again.updates == 0
    moved, state, _ = updated(learner, moved, 2, state)  # the third, and the first of another period
    assert state.updates == 1
    assert np.any(np.asarray(state.proposing.weights[0] != policy.net.weights[0]))
    assert np.any(np.asarray(state.proposing.weights[0] != moved.net.weights[0]))


def test_proposals_survive_another_normaliser(policy):
    learner = MPO(MPOSettings(hidden=(8,)))
    new = policy.renormalised(Normaliser(jnp.array([3.0]), jnp.array([0.2])))
    state = learner.renormalised(learner.begin(policy, M, KEY), policy, new, Size(jnp.ones(()), jnp.ones(())))
    places = jnp.linspace(-2, 2, 7)[:, None]
    far = kl_divergence(eqx.tree_at(lambda p: p.net, new, state.proposing)(places), policy(places))
    np.testing.assert_allclose(far, 0, atol=1e-4)


@pytest.mark.slow
def test_the_noise_does_not_fall_below_its_least(policy):
    narrow = eqx.tree_at(lambda p: p.net.biases[-1], policy, policy.net.biases[-1].at[1].set(-3.0))
    learner = MPO(MPOSettings(hidden=(8,), learning_rate=0.01, deviation_kl=0.1, period=5, deviation=0.3))
    _, _, metrics = updated(learner, narrow, 300)
    assert metrics["log_deviation"][0] < np.log(0.1)
    assert metrics["log_deviation"][-1] > np.log(0.3) - 0.3
