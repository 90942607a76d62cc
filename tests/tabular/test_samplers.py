from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from cdpo.tabular.samplers import dirichlet, log_gamma, standard_gamma, student_t

DRAWS = 50_000
# The chance of a false alarm of one Kolmogorov-Smirnov test; seeds are fixed, so it fails always or never.
ALARM = 1e-3
KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def gamma_draws():
    """Shapes side by side in one call, as in a posterior, so that one element's rejection may disturb another's."""
    shapes = np.array([0.3, 1.0, 1.5, 7.0, 500.0], np.float32)
    draw = jax.jit(lambda key: jnp.exp(log_gamma(key, jnp.broadcast_to(shapes, (100, 5)))))
    keys = jax.random.split(jax.random.key(1), DRAWS // 100)
    draws = np.concatenate(jax.lax.map(draw, keys))
    return dict(zip(shapes.tolist(), draws.T, strict=True))


@pytest.mark.parametrize("shape", [0.3, 1.0, 1.5, 7.0, 500.0])
def test_gamma_distribution(gamma_draws, shape):
    draws = gamma_draws[float(np.float32(shape))]
    assert (draws > 0).all()
    assert stats.kstest(draws, stats.gamma(shape).cdf).pvalue > ALARM


def test_gamma_neighbours_are_independent(gamma_draws):
    ranks = np.stack([stats.rankdata(draws) for draws in gamma_draws.values()])
    off_diagonal = np.corrcoef(ranks)[~np.eye(5, dtype=bool)]
    assert np.abs(off_diagonal).max() < 0.02


def test_gamma_redraws_until_all_are_accepted():
    """Just above one rejections are most common, and 2000 elements share a few slots for fresh proposals."""
    shape = jnp.full(2000, 1.0001)
    draws = jax.jit(lambda key: standard_gamma(key, shape))(jax.random.key(2))
    assert (np.asarray(draws) > 0).all()
    assert len(np.unique(draws)) > 1990
    assert stats.kstest(draws, stats.gamma(1.0001).cdf).pvalue > ALARM


def test_gamma_under_vmap_equals_one_by_one():
    shape = jnp.array([[1.0, 1.5], [3.0, 9.0], [1.1, 200.0]])
    draw = lambda key: standard_gamma(key, shape)  # noqa: E731
    keys = jax.random.split(jax.random.key(5), 20)
    batch = jax.jit(jax.vmap(draw))(keys)
    one = jax.jit(draw)
    np.testing.assert_allclose(batch, np.stack([one(key) for key in keys]), rtol=1e-5)


SMALL = [0.3, 0.05, 0.01, 1e-3, 1e-6]


@pytest.fixture(scope="module")
def dirichlet_draws():
    """Rows of three unlike weights that sum to three times the concentration named."""

    def draws(concentration):
        row = jnp.array([0.5, 1.0, 1.5], jnp.float32) * concentration
        draw = lambda key: dirichlet(key, jnp.broadcast_to(row, (100, 3)), smallest=0.5 * concentration)  # noqa: E731
        return np.concatenate(jax.lax.map(jax.jit(draw), jax.random.split(jax.random.key(7), DRAWS // 100)))

    return cache(draws)


@pytest.mark.parametrize("concentration", [*SMALL, 1e-30])
def test_dirichlet_rows_of_any_concentration_are_distributions(dirichlet_draws, concentration):
    rows = dirichlet_draws(concentration)
    assert np.isfinite(rows).all() and (rows >= 0).all()
    np.testing.assert_allclose(rows.sum(-1), 1, atol=1e-5)


@pytest.mark.parametrize("concentration", SMALL)
def test_dirichlet_has_the_moments_of_small_concentrations(dirichlet_draws, concentration):
    rows = np.float64(dirichlet_draws(concentration))
    mean = np.array([0.5, 1.0, 1.5]) / 3
    covariance = (np.diag(mean) - np.outer(mean, mean)) / (3 * concentration + 1)
    # Standard errors of 50,000 draws are .0021 at most.
    np.testing.assert_allclose(rows.mean(0), mean, atol=0.008)
    np.testing.assert_allclose(np.cov(rows.T), covariance, atol=0.005)


@pytest.mark.parametrize("concentration", SMALL)
@pytest.mark.parametrize("level", [0.9, 0.999])
def test_dirichlet_has_the_largest_weights_of_small_concentrations(dirichlet_draws, concentration, level):
    """Above a half at most one weight is, so the largest one's tail is the sum of the tails of the beta marginals."""
    share = np.array([0.5, 1.0, 1.5]) * concentration
    # By the mirrored distribution: scipy's own tail near one would cancel.
    expected = sum(stats.beta(share.sum() - own, own).cdf(1 - level) for own in share)
    found = (dirichlet_draws(concentration).max(-1) > level).mean()
    assert found == pytest.approx(expected, abs=4 * np.sqrt(expected * (1 - expected) / DRAWS) + 1e-4)


@pytest.mark.parametrize("concentration", [1.0, 2.5])
def test_a_flat_dirichlet_spends_nothing_on_logarithms(concentration):
    """The bits of weights over their sum, whatever is done for smaller concentrations."""
    shape = jnp.full((20, 4), concentration)
    weight = standard_gamma(KEY, shape)
    expected = weight / jnp.sum(weight, axis=-1, keepdims=True)
    np.testing.assert_array_equal(dirichlet(KEY, shape, smallest=concentration), expected)


@pytest.fixture(scope="module")
def t_draws():
    freedom = np.array([6.0, 9.0, 200.0], np.float32)
    draws = jax.jit(lambda key: student_t(key, jnp.broadcast_to(freedom, (DRAWS, 3))))(jax.random.key(4))
    return dict(zip(freedom.tolist(), np.asarray(draws).T, strict=True))


@pytest.mark.parametrize("freedom", [6.0, 9.0, 200.0])
def test_student_t_distribution(t_draws, freedom):
    assert stats.kstest(t_draws[freedom], stats.t(freedom).cdf).pvalue > ALARM
