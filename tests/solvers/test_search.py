"""Search: it finds what is known to be best, and its noise is what it says."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdpo.errors import UserError
from cdpo.solvers.search import SearchSettings, coloured, search

KEY = jax.random.key(0)


@dataclass(frozen=True)
class Searching(SearchSettings):
    part = "searching"


LONG = {
    "cem": Searching(iterations=15, candidates=128, elites=16),
    "mppi": Searching(method="mppi", iterations=15, candidates=128, sharpness=8.0),
}


@partial(jax.jit, static_argnames="method")
def quadratic(best, weight, start, key, method):
    """In five dimensions."""
    score = lambda candidates: -jnp.sum(weight * (candidates - best) ** 2, axis=-1)  # noqa: E731
    return search(score, start, jnp.asarray(1.0), key, LONG[method])


@settings(derandomize=True, max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), method=st.sampled_from(sorted(LONG)))
def test_it_finds_the_best_point_of_a_quadratic(seed, method):
    rng = np.random.default_rng(seed)
    start, weight = rng.normal(size=5), rng.uniform(0.5, 2.0, 5)
    best = start + rng.uniform(-2.0, 2.0, 5)
    found = quadratic(*map(jnp.asarray, (best, weight, start)), jax.random.key(seed), method)
    np.testing.assert_allclose(found.best, best, atol=0.2)
    np.testing.assert_allclose(found.first, -np.sum(weight * (start - best) ** 2), rtol=1e-4)
    np.testing.assert_allclose(found.value, -np.sum(weight * (found.best - best) ** 2), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("method", LONG)
def test_the_higher_of_two_peaks_is_not_forgotten_where_the_search_settles_on_the_other(method):
    def score(candidates):
        far = jnp.sum((candidates - 1.5) ** 2, axis=-1)
        near = jnp.sum((candidates + 0.5) ** 2, axis=-1)
        return 2 * jnp.exp(-far) + jnp.exp(-near)  # at most 1.02 at the near peak

    searched = jax.vmap(lambda key: search(score, jnp.zeros(2), jnp.asarray(1.0), key, LONG[method]))
    found = jax.jit(searched)(jax.random.split(KEY, 4))
    assert np.all(np.asarray(found.value) > 1.3) and np.all(np.asarray(found.best) > 0)


@pytest.mark.parametrize("method", LONG)
def test_what_is_no_number_is_worth_nothing_and_a_start_that_nothing_beats_is_kept(method):
    @jax.jit
    def found(start, nowhere):
        def score(candidates):
            worth = jnp.where(candidates[..., 0] > 0, jnp.nan, -jnp.abs(candidates[..., 0]))
            return jnp.where(nowhere, jnp.inf, worth)

        return search(score, jnp.array([start]), jnp.asarray(1.0), KEY, LONG[method])

    better, same, lost = found(-2.0, False), found(0.0, False), found(7.0, True)
    assert -0.1 < better.best[0] <= 0 and better.value > better.first == -2
    assert (same.best[0], same.value, same.first) == (0, 0, 0)
    assert (lost.best[0], lost.value) == (7, -jnp.inf)


def test_equal_keys_find_the_same_and_others_do_not():
    first, again = (quadratic(jnp.ones(5), jnp.ones(5), jnp.zeros(5), KEY, "cem") for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, first, again)
    other = quadratic(jnp.ones(5), jnp.ones(5), jnp.zeros(5), jax.random.key(1), "cem")
    assert np.all(np.asarray(first.best != other.best))


# --- noise


@pytest.mark.slow(besides="30-1.0")
@pytest.mark.parametrize("colour", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("length", [1, 2, 30])
def test_noise_has_variance_one_at_every_step(colour, length):
    noise = np.asarray(coloured(KEY, (20_000, length, 2), colour))
    assert noise.shape == (20_000, length, 2)
    np.testing.assert_allclose(noise.mean(axis=0), 0, atol=0.04)
    np.testing.assert_allclose(noise.var(axis=0), 1, atol=0.06)
    np.testing.assert_allclose(np.mean(noise[..., 0] * noise[..., 1]), 0, atol=0.04)  # parts are independent


@pytest.mark.parametrize("colour", [0.0, 1.0, 2.0])
def test_its_power_falls_with_the_frequency_as_told(colour):
    noise = np.asarray(coloured(KEY, (4000, 256, 1), colour))[..., 0]
    window = np.hanning(256)  # what was cut at its ends would leak into all frequencies
    power = np.mean(np.abs(np.fft.rfft(noise * window)) ** 2, axis=0)
    some = np.arange(6, 90)
    slope = np.polyfit(np.log(some), np.log(power[some]), 1)[0]
    assert slope == pytest.approx(-colour, abs=0.1)


def test_only_sequences_are_coloured():
    """A quick wave is out of reach of red noise, and not of white."""
    wave = jnp.tile(jnp.array([1.0, -1.0]), 10)

    def found(colour, target):
        red = Searching(iterations=1, candidates=256, elites=1, colour=colour)
        score = lambda z: jnp.sum(jnp.sign(z) == jnp.sign(target), axis=tuple(range(1, z.ndim)))  # noqa: E731
        return search(lambda z: score(z).astype(float), jnp.zeros_like(target), jnp.asarray(1.0), KEY, red).value

    assert found(2.0, wave[:, None]) < found(0.0, wave[:, None])
    assert found(2.0, wave) == found(0.0, wave)


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"iterations": 0}, "searching.iterations must be at least 1, not 0"),
        ({"candidates": 0}, "searching.candidates must be at least 1, not 0"),
        ({"elites": 0}, "searching.elites must be at least 1, not 0"),
        ({"candidates": 4, "elites": 5}, "searching.elites must be at most the 4 candidates, not 5"),
        ({"sharpness": 0.0}, "searching.sharpness must be above 0"),
        ({"colour": -1.0}, "searching.colour must not be negative"),
        ({"method": "cme"}, "did you mean 'cem'"),
    ],
)
def test_settings_outside_their_range_are_told_in_one_line(wrong, word):
    with pytest.raises(UserError) as told:
        Searching(**wrong)
    assert word in str(told.value) and "\n" not in str(told.value)
