import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from cdpo.noise import fold, normal, normal_from, threefry, uniform_pairs

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
    drawn = np.stack([uniform_pairs(key, (100,), stream) for stream in (0, 1)])
    assert not set(np.ravel(drawn * 2**23).astype(int)) & set(np.ravel(derived >> 9))


def test_normal_quantiles():
    uniform = np.array([0.001, 0.1, 0.5, 0.7, 0.999], np.float32)
    np.testing.assert_allclose(normal_from(jnp.asarray(uniform)), stats.norm.ppf(uniform), atol=1e-4)


def test_streams_of_one_key_are_independent():
    zero, one = (uniform_pairs(jax.random.key(0), (20_000,), stream=stream) for stream in (0, 1))
    together = np.corrcoef([*zero, *one])
    assert np.abs(together[~np.eye(4, dtype=bool)]).max() < 0.03


def test_normal_numbers():
    draws = np.asarray(jax.jit(lambda key: normal(key, (500, 100)))(jax.random.key(6)))
    assert stats.kstest(draws.ravel(), "norm").pvalue > ALARM
    assert np.abs(draws).max() > 4  # 50,000 of them
    neighbours = [
        np.corrcoef(draws[:-1].ravel(), draws[1:].ravel()),
        np.corrcoef(draws[:, :-1].ravel(), draws[:, 1:].ravel()),
    ]
    assert np.abs([each[0, 1] for each in neighbours]).max() < 0.02


def test_normal_numbers_of_other_keys_are_others():
    one, other = (normal(jax.random.key(seed), (20_000,)) for seed in (0, 1))
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.03
