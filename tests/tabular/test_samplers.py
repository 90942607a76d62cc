import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from cdpo.tabular.samplers import fold, normal_from, standard_gamma, student_t, threefry, uniform_pairs

DRAWS = 50_000
# The chance of a false alarm of one Kolmogorov-Smirnov test; seeds are fixed, so it fails always or never.
ALARM = 1e-3


@pytest.mark.parametrize(
    ("key", "counter", "answer"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_known_answers(key, counter, answer):
    """The test vectors that Random123 publishes."""
    words = lambda pair: tuple(jnp.uint32(word) for word in pair)  # noqa: E731
    assert tuple(int(word) for word in threefry(words(key), words(counter))) == answer


def test_uniform_numbers_fill_the_open_interval():
    x, y = jax.jit(lambda key: uniform_pairs(key, (500_000,)))(jax.random.key(0))
    both = np.concatenate([x, y])
    assert both.min() > 0 and both.max() < 1
    assert stats.kstest(x, "uniform").pvalue > ALARM and stats.kstest(y, "uniform").pvalue > ALARM
    assert abs(np.corrcoef(x, y)[0, 1]) < 0.01


def test_the_extreme_bits_stay_inside_the_open_interval():
    """The arithmetic of `uniform_pairs` on the smallest and the largest word."""
    words = jnp.array([0, 0xFFFFFFFF], jnp.uint32)
    ends = (words >> 9) * 2.0**-23 + 2.0**-24
    assert ends[0] > 0 and ends[1] < 1
    assert np.isfinite(normal_from(ends)).all()


def test_derived_keys_differ_from_each_other_and_from_the_numbers_drawn():
    key = jax.random.key(3)
    derived = np.stack([jax.random.key_data(fold(key, index)) for index in range(100)])
    assert len(np.unique(derived, axis=0)) == 100
    words = jax.random.key_data(key)
    drawn = np.stack(threefry((words[0], words[1]), (jnp.arange(100, dtype=jnp.uint32), jnp.zeros(100, jnp.uint32))))
    assert not (set(drawn.ravel().tolist()) & set(derived.ravel().tolist()))


def test_normal_quantiles():
    uniform = np.array([0.001, 0.1, 0.5, 0.7, 0.999], np.float32)
    np.testing.assert_allclose(normal_from(jnp.asarray(uniform)), stats.norm.ppf(uniform), atol=1e-4)


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


def test_streams_of_one_key_are_independent():
    zero, one = (uniform_pairs(jax.random.key(0), (20_000,), stream=stream) for stream in (0, 1))
    together = np.corrcoef([*zero, *one])
    assert np.abs(together[~np.eye(4, dtype=bool)]).max() < 0.03


@pytest.mark.parametrize("freedom", [6.0, 9.0, 200.0])
def test_student_t_distribution(t_draws, freedom):
    assert stats.kstest(t_draws[freedom], stats.t(freedom).cdf).pvalue > ALARM
