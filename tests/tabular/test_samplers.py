import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from cdpo.tabular.samplers import standard_gamma, student_t

DRAWS = 50_000
# The chance of a false alarm of one Kolmogorov-Smirnov test; seeds are fixed, so it fails always or never.
ALARM = 1e-3


@pytest.fixture(scope="module")
def gamma_draws():
    """Shapes side by side in one call, as in a posterior, so that one element's rejection may disturb another's."""
    shapes = np.array([0.3, 1.0, 1.5, 7.0, 500.0], np.float32)
    draw = jax.jit(lambda key: standard_gamma(key, jnp.broadcast_to(shapes, (100, 5)), smallest=0.3))
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
    draws = jax.jit(lambda key: standard_gamma(key, shape, smallest=1.0))(jax.random.key(2))
    assert (np.asarray(draws) > 0).all()
    assert len(np.unique(draws)) > 1990
    assert stats.kstest(draws, stats.gamma(1.0001).cdf).pvalue > ALARM


def test_gamma_under_vmap_equals_one_by_one():
    shape = jnp.array([[1.0, 1.5], [3.0, 9.0], [1.1, 200.0]])
    draw = lambda key: standard_gamma(key, shape, smallest=1.0)  # noqa: E731
    keys = jax.random.split(jax.random.key(5), 20)
    batch = jax.jit(jax.vmap(draw))(keys)
    one = jax.jit(draw)
    np.testing.assert_allclose(batch, np.stack([one(key) for key in keys]), rtol=1e-5)


@pytest.fixture(scope="module")
def t_draws():
    freedom = np.array([6.0, 9.0, 200.0], np.float32)
    draws = jax.jit(lambda key: student_t(key, jnp.broadcast_to(freedom, (DRAWS, 3))))(jax.random.key(4))
    return dict(zip(freedom.tolist(), np.asarray(draws).T, strict=True))


@pytest.mark.parametrize("freedom", [6.0, 9.0, 200.0])
def test_student_t_distribution(t_draws, freedom):
    assert stats.kstest(t_draws[freedom], stats.t(freedom).cdf).pvalue > ALARM
