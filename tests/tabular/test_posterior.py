import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdpo.errors import UserError
from cdpo.tabular.planning import Known
from cdpo.tabular.posterior import NormalGamma, Posterior, Prior, Transitions

S, A, STEPS = 3, 2, 40
PRIOR = Prior(concentration=0.7, mean=0.3, strength=2.0, shape=2.5, rate=1.5)
update = jax.jit(lambda posterior, batch: posterior.update(batch))


def data(seed):
    rng = np.random.default_rng(seed)
    state, action, successor = (rng.integers(n, size=STEPS) for n in (S, A, S))
    reward = rng.normal(loc=state - action, scale=1 + successor).astype(np.float32)
    return state, action, reward, successor


def batch_of(steps, chosen, size=STEPS):
    """The chosen steps, padded with nonsense of weight zero to a fixed size, so that one executable serves all."""
    state, action, reward, successor = (np.asarray(field)[chosen] for field in steps)
    fill = lambda field, value: jnp.asarray(np.concatenate([field, np.full(size - len(field), value, field.dtype)]))  # noqa: E731
    weight = fill(np.ones(len(state), np.float32), 0)
    return Transitions(fill(state, 1), fill(action, 0), fill(reward, 1e4), fill(successor, 2), weight)


def closed_form(steps, prior=PRIOR):
    """The posterior after all steps at once, in float64 by the textbook's formulas."""
    concentration = np.full((S, A, S), prior.concentration)
    rewards = np.empty((4, S, A, S))
    for cell in np.ndindex(S, A, S):
        here = (steps[0] == cell[0]) & (steps[1] == cell[1]) & (steps[3] == cell[2])
        r = steps[2][here].astype(np.float64)
        n, average = len(r), r.mean() if len(r) else 0.0
        concentration[cell] += n
        rewards[(slice(None), *cell)] = (
            (prior.strength * prior.mean + r.sum()) / (prior.strength + n),
            prior.strength + n,
            prior.shape + n / 2,
            prior.rate
            + 0.5 * np.sum((r - average) ** 2)
            + prior.strength * n * (average - prior.mean) ** 2 / (2 * (prior.strength + n)),
        )
    return concentration, rewards


def known(terminal=(False, False, False)):
    return Known(jnp.array([1.0, 0, 0]), jnp.array(terminal), jnp.ones((S, A), bool), jnp.float32(0.9))


@settings(derandomize=True, max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), cuts=st.lists(st.integers(0, STEPS), max_size=5), shuffle=st.booleans())
def test_update_equals_the_closed_form_in_any_batches_and_order(seed, cuts, shuffle):
    steps = data(seed)
    order = np.random.default_rng(seed + 1).permutation(STEPS) if shuffle else np.arange(STEPS)
    posterior = Posterior.initial(S, A, PRIOR)
    for part in np.split(order, sorted(cuts)):
        posterior = update(posterior, batch_of(steps, part))
    concentration, rewards = closed_form(steps)
    np.testing.assert_allclose(posterior.concentration, concentration, rtol=1e-6)
    for found, expected in zip(posterior.rewards, rewards, strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-5)


def test_padding_is_ignored():
    posterior = update(Posterior.initial(S, A, PRIOR), batch_of(data(0), slice(0, 0)))
    for field in (posterior.count, posterior.average, posterior.scatter):
        np.testing.assert_array_equal(field, np.zeros((S, A, S)))


def test_the_scatter_of_rewards_near_one_survives_float32():
    """On the chain the rewards are 1 give or take 1e-3 and less; a float32 sum of squares would lose that."""
    rng = np.random.default_rng(0)
    reward = (1 + 1e-3 * rng.normal(size=4000)).astype(np.float32)
    zeros = np.zeros(len(reward), np.int32)
    posterior = Posterior.initial(S, A, Prior())
    for part in np.split(np.arange(len(reward)), 400):
        posterior = update(posterior, batch_of((zeros, zeros, reward, zeros), part))
    exact = np.sum((reward.astype(np.float64) - reward.mean(dtype=np.float64)) ** 2)
    assert float(posterior.scatter[0, 0, 0]) == pytest.approx(exact, rel=1e-2)


@pytest.fixture(scope="module")
def posterior():
    return update(Posterior.initial(S, A, PRIOR), batch_of(data(7), slice(0, 30)))


def test_mean_model(posterior):
    concentration, rewards = closed_form([field[:30] for field in data(7)])
    transition = concentration / concentration.sum(-1, keepdims=True)
    model = posterior.mean(known())
    np.testing.assert_allclose(model.transition, transition, rtol=1e-5)
    np.testing.assert_allclose(model.reward, np.sum(transition * rewards[0], axis=-1), rtol=1e-4, atol=1e-5)


def test_a_model_sends_nothing_back_from_terminal_states_but_pays_for_entering(posterior):
    free, ending = posterior.mean(known()), posterior.mean(known((False, False, True)))
    np.testing.assert_array_equal(ending.transition[..., 2], 0)
    np.testing.assert_array_equal(ending.transition[..., :2], free.transition[..., :2])
    np.testing.assert_array_equal(ending.reward, free.reward)


def test_least_squares_model_is_the_frequencies_and_averages_and_the_priors_mean_elsewhere():
    state, action = np.array([0, 0, 0, 1]), np.array([0, 0, 0, 1])
    reward, successor = np.array([1.0, 3.0, 5.0, -1.0], np.float32), np.array([0, 0, 2, 1])
    seen = update(Posterior.initial(S, A, PRIOR), batch_of((state, action, reward, successor), slice(None)))
    model = seen.least_squares(known())
    expected = np.full((S, A, S), 1 / 3)
    expected[0, 0], expected[1, 1] = [2 / 3, 0, 1 / 3], [0, 1, 0]
    np.testing.assert_allclose(model.transition, expected, rtol=1e-6)
    rewards = np.full((S, A), PRIOR.mean)
    rewards[0, 0], rewards[1, 1] = 3, -1
    np.testing.assert_allclose(model.reward, rewards, rtol=1e-6)


def test_sampled_models_have_the_posteriors_moments(posterior):
    count = 20_000
    draw = jax.jit(lambda key: posterior.sample_set(known(), key, count))
    sampled = draw(jax.random.key(0))
    transition = np.asarray(sampled.transition, np.float64)
    np.testing.assert_allclose(transition.sum(-1), 1, atol=1e-5)
    concentration, rewards = closed_form([field[:30] for field in data(7)])
    total = concentration.sum(-1, keepdims=True)
    mean = concentration / total
    variance = mean * (1 - mean) / (total + 1)
    np.testing.assert_allclose(transition.mean(0), mean, atol=5 * np.sqrt(variance.max() / count))
    np.testing.assert_allclose(transition.var(0), variance, rtol=0.08, atol=2e-4)

    # Mean and variance of sum_s' P mu, for independent P ~ Dirichlet and mu ~ Student t.
    mu, strength, shape, rate = rewards
    mu_variance = rate / (strength * (shape - 1))
    covariance = -mean[..., :, None] * mean[..., None, :] / (total + 1)[..., None]
    covariance += np.eye(S) * (mean / (total + 1))[..., None]
    second = variance + mean**2
    reward_mean = np.sum(mean * mu, axis=-1)
    reward_variance = np.sum(second * mu_variance, axis=-1) + np.einsum("sai,saij,saj->sa", mu, covariance, mu)
    found = np.asarray(sampled.reward, np.float64)
    np.testing.assert_allclose(found.mean(0), reward_mean, atol=5 * np.sqrt(reward_variance.max() / count))
    np.testing.assert_allclose(found.var(0), reward_variance, rtol=0.15)


@pytest.mark.parametrize("concentration", [1e-2, 1e-3, 1e-6])
def test_sampled_models_of_a_sparse_prior_are_whole(concentration):
    known = Known(jnp.eye(10)[0], jnp.zeros(10, bool), jnp.ones((10, A), bool), jnp.array(0.9))
    empty = Posterior.initial(10, A, Prior(concentration=concentration))
    models = jax.jit(lambda key: empty.sample_set(known, key, 50))(jax.random.key(0))
    assert np.isfinite(models.transition).all() and np.isfinite(models.reward).all()
    np.testing.assert_allclose(models.transition.sum(-1), 1, atol=1e-5)


def test_normal_gamma_marginal_variance():
    belief = NormalGamma(*(jnp.full(100_000, x) for x in (0.5, 2.0, 6.0, 3.0)))
    assert float(belief.mean_variance[0]) == pytest.approx(3 / (2 * 5))
    draws = np.asarray(belief.sample_mean(jax.random.key(0)), np.float64)
    assert draws.mean() == pytest.approx(0.5, abs=0.01)
    assert draws.var() == pytest.approx(0.3, rel=0.03)


@pytest.mark.parametrize("name", ["concentration", "strength", "rate"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_prior_rejects_what_has_no_density(name, value):
    with pytest.raises(UserError, match=f"prior {name} must be positive"):
        Prior(**{name: value})


@pytest.mark.parametrize("value", [1.0, 0.0, float("nan")])
def test_prior_rejects_a_shape_without_variance(value):
    with pytest.raises(UserError, match="prior shape must be above 1"):
        Prior(shape=value)
