import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdpo.dynamics.networks import Normaliser, activated
from cdpo.solvers.policy import Gaussian, HostPolicy, Policy, counted, kl_divergence
from cdpo.tasks import find_task

few = settings(derandomize=True, max_examples=25, deadline=None)
sample = eqx.filter_jit(lambda policy, observation, key: policy.sample(observation, key))
look = eqx.filter_jit(lambda policy, observation: policy(observation))
divergence = jax.jit(kl_divergence)
means, log_deviations = st.floats(-2.5, 2.5, width=32), st.floats(-2, 1, width=32)


def free(observation, action, following):
    return jnp.zeros(observation.shape[:-1])


@pytest.fixture
def task(linear_task):
    return linear_task(free, observations=2)


def log_density(action, mean, deviation):
    """Of tanh of a Gaussian: change of variables, in float64."""
    action = np.asarray(action, np.float64)
    score = (np.arctanh(action) - mean) / deviation
    return -0.5 * score**2 - np.log(deviation * np.sqrt(2 * np.pi)) - np.log(1 - action**2)


def test_the_density_of_a_draw_is_that_of_the_squashed_gaussian(task, some_policy):
    policy = some_policy(task, extra=1)
    observation = np.random.default_rng(0).normal(size=(3, 50, 2)).astype(np.float32)
    action, density = sample(policy, observation, jax.random.key(0))
    mean, log_deviation = (np.asarray(part, np.float64) for part in look(policy, observation))
    inside = np.abs(np.asarray(action)) < 0.999  # beyond, atanh of a rounded number is no judge
    by_hand = log_density(action, mean, np.exp(log_deviation))[..., 0]  # of the action, not of what is chosen beside it
    kept = np.all(inside, axis=-1)
    np.testing.assert_allclose(np.asarray(density)[kept], by_hand[kept], atol=0.02)
    assert kept.mean() > 0.8


def test_the_density_integrates_to_one(task, some_policy):
    observation = np.tile(np.float32([0.3, -0.2]), (20000, 1))
    action, density = (np.asarray(part) for part in sample(some_policy(task), observation, jax.random.key(1)))
    order = np.argsort(action[:, 0])
    assert np.trapezoid(np.exp(density[order]), action[order, 0]) == pytest.approx(1, abs=0.02)


def test_densities_of_saturated_actions_are_finite(task, some_policy):
    far = eqx.tree_at(lambda p: p.net.biases[-1], some_policy(task), jnp.array([1e3, 1e3]))
    action, density = sample(far, np.zeros((500, 2), np.float32), jax.random.key(0))
    assert np.all(np.isfinite(density))
    assert np.max(action) <= 1


@few
@given(p=st.tuples(means, log_deviations), q=st.tuples(means, log_deviations))
def test_the_divergence_is_that_of_the_squashed_densities(p, q):
    raw = np.linspace(-40, 40, 20001)
    log_p, log_q = (-0.5 * ((raw - mean) / np.exp(log)) ** 2 - log for mean, log in (p, q))
    # Between the squashed densities: the derivative of tanh cancels in the ratio, and in density times step.
    by_quadrature = np.trapezoid(np.exp(log_p) / np.sqrt(2 * np.pi) * (log_p - log_q), raw)
    gaussians = [Gaussian(jnp.float32([mean]), jnp.float32([log])) for mean, log in (p, q)]
    assert divergence(*gaussians) == pytest.approx(by_quadrature, rel=1e-3, abs=1e-4)


@few
@given(p=st.tuples(means, log_deviations), q=st.tuples(means, log_deviations))
def test_the_divergence_is_not_negative_and_zero_only_between_equals(p, q):
    gaussians = [Gaussian(jnp.float32([mean]), jnp.float32([log])) for mean, log in (p, q)]
    assert divergence(gaussians[0], gaussians[0]) == 0
    value = float(divergence(*gaussians))
    assert value >= -1e-6
    if max(abs(p[0] - q[0]), abs(p[1] - q[1])) > 0.02:
        assert value > 0


def test_the_divergence_adds_over_the_parts_of_an_action():
    rng = np.random.default_rng(0)
    p, q = (Gaussian(*jnp.asarray(rng.normal(size=(2, 5, 3)), jnp.float32)) for _ in range(2))
    parts = [divergence(*(jax.tree.map(lambda x, i=i: x[:, i : i + 1], each) for each in (p, q))) for i in range(3)]
    np.testing.assert_allclose(divergence(p, q), sum(parts), rtol=1e-5)


@few
@given(st.tuples(means, log_deviations), st.tuples(means, log_deviations))
def test_what_a_state_counts_for_bounds_its_total_variation(p, q):
    grid = np.linspace(-40, 40, 160_001)
    densities = [np.exp(-0.5 * ((grid - m) / np.exp(s)) ** 2 - s) / np.sqrt(2 * np.pi) for m, s in (p, q)]
    variation = 0.5 * np.trapezoid(np.abs(densities[0] - densities[1]), grid)
    kl = divergence(*(Gaussian(jnp.array([m]), jnp.array([s])) for m, s in (p, q)))
    assert float(counted(kl)) >= 2 * variation**2 - 1e-5


def test_what_a_state_counts_for_is_its_divergence_and_far_away_grows_like_the_distance():
    near, far = jnp.array([0.0, 0.1, 1.0, 1.5]), jnp.array([40.0, 160.0, 640.0])
    np.testing.assert_array_equal(counted(near), near)
    np.testing.assert_allclose(np.diff(counted(far)) / np.diff(np.sqrt(far)), 2 * np.sqrt(1.6), rtol=1e-5)
    slope = jax.vmap(jax.grad(counted))(jnp.array([0.0, 0.1, 1.59, 1.61, 160.0]))
    np.testing.assert_allclose(slope, [1, 1, 1, 1, 0.1], rtol=0.01)
    assert np.all(np.diff(counted(jnp.linspace(0, 10, 500))) > 0)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize(("extra", "hidden"), [(0, (8,)), (2, (8, 4)), (0, ())])
def test_the_policy_on_the_host_has_the_same_mode_and_draws(task, some_policy, extra, hidden, activation):
    policy = activated(some_policy(task, extra=extra, hidden=hidden), activation)
    rng = np.random.default_rng(0)
    observation = rng.normal(size=(20, 2))
    noise = rng.normal(size=(20, 1)).astype(np.float32)
    mean, log_deviation = (np.asarray(part)[:, :1] for part in look(policy, observation.astype(np.float32)))
    host = HostPolicy(policy)
    np.testing.assert_allclose(host(observation), np.tanh(mean), atol=1e-5)
    np.testing.assert_allclose(host(observation, noise), np.tanh(mean + np.exp(log_deviation) * noise), atol=1e-5)
    np.testing.assert_allclose(host(observation[3]), host(observation)[3], atol=1e-6)
    assert host(observation[3]).shape == (1,)


def test_the_policy_on_the_host_sees_the_tasks_features():
    task = find_task("pendulum-swingup")
    inputs = Normaliser(jnp.array([0.1, -0.2, 0.3]), jnp.array([0.5, 2.0, 4.0]))
    policy = Policy.create(task, inputs, (8,), jax.random.key(0))
    policy = eqx.tree_at(lambda p: p.net.weights[-1], policy, 100 * policy.net.weights[-1])
    observation = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    np.testing.assert_allclose(HostPolicy(policy)(observation), np.tanh(look(policy, observation).mean), atol=1e-5)


@settings(derandomize=True, max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_a_renormalised_policy_is_the_same_policy(linear_task, some_policy, seed):
    rng = np.random.default_rng(seed)
    policy = some_policy(linear_task(free, observations=2), seed)
    inputs = Normaliser(*jnp.asarray([rng.normal(size=2), rng.uniform(0.3, 3, 2)], jnp.float32))
    observation = rng.normal(size=(5, 2)).astype(np.float32)
    before, after = look(policy, observation), look(policy.renormalised(inputs), observation)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), before, after)


def test_an_untrained_policy_acts_near_zero_with_some_noise(task):
    policy = Policy.create(task, Normaliser.identity(2), (8,), jax.random.key(0))
    mean, log_deviation = look(policy, np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32))
    assert np.max(np.abs(mean)) < 0.1
    assert np.all((np.exp(log_deviation) > 0.5) & (np.exp(log_deviation) < 1.5))
    assert policy.actions == 1
