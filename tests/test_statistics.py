"""Estimates against hand-computed cases, scipy, and what must hold for any data."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu, trim_mean

from cdpo.statistics import (
    Estimate,
    bootstrap_band,
    estimate,
    improvement,
    interquartile,
    interquartile_band,
    interquartile_mean,
    mean_band,
    spread,
)

# Whole numbers, so that ties happen and sums are exact.
seeds = st.lists(st.integers(-1000, 1000).map(float), min_size=1, max_size=12)
tasks = st.lists(st.tuples(seeds, seeds), min_size=1, max_size=3)


def test_bootstrap_band_covers_the_mean_about_as_often_as_it_says():
    rng = np.random.default_rng(1)
    trials = rng.normal(size=(20, 400))  # 400 experiments of 20 seeds each, true mean zero
    low, high = bootstrap_band(trials)
    assert low.shape == high.shape == (400,)
    assert 0.88 < np.mean((low <= 0) & (high >= 0)) < 0.98
    assert ((low < trials.mean(0)) & (trials.mean(0) < high)).all()
    # As wide as the normal approximation with 20 seeds, which the percentile interval nearly is.
    assert np.mean(high - low) == pytest.approx(2 * 1.96 / np.sqrt(20), rel=0.1)


@pytest.mark.parametrize("seeds", [2, 6, 30])
def test_bootstrap_band_is_the_middle_of_the_means_of_all_resamples(seeds):
    rows = np.random.default_rng(1).normal(size=(seeds, 3))
    counts = np.random.default_rng(0).multinomial(seeds, np.full(seeds, 1 / seeds), size=2000)
    expected = np.quantile(counts @ rows / seeds, [0.025, 0.975], axis=0)
    np.testing.assert_allclose(bootstrap_band(rows), expected, rtol=1e-12)
    np.testing.assert_allclose(bootstrap_band(rows[:, 0]), expected[:, 0], rtol=1e-12)


def test_bootstrap_band_is_seeded_and_degenerate_for_equal_seeds():
    rows = np.random.default_rng(0).normal(size=(10, 3))
    np.testing.assert_array_equal(bootstrap_band(rows), bootstrap_band(rows))
    low, high = bootstrap_band(np.full((5, 2), 3.0))
    np.testing.assert_allclose([low, high], 3.0)
    narrow, wide = bootstrap_band(rows, level=0.5), bootstrap_band(rows, level=0.99)
    assert (wide[0] < narrow[0]).all() and (narrow[1] < wide[1]).all()


def test_interquartile_means_by_hand():
    assert interquartile([7.0]) == Estimate(7.0, None, None, 1)
    assert interquartile([0.0, 3.0, 9.0]).mean == 4.0  # none is cut
    assert interquartile([-100.0, 1.0, 2.0, 100.0]).mean == 1.5
    assert interquartile([-100.0, 1.0, 2.0, 3.0, 4.0, 100.0]).mean == 2.5  # one of six at either end
    assert interquartile([None, math.nan]) == Estimate(None, None, None, 0)
    assert interquartile([1.0, 2.0, None, 90.0]) == interquartile([1.0, 2.0, 90.0])


def test_pooled_tasks_are_drawn_apart():
    # A task whose seeds agree adds no spread: drawn together, one of four seeds would often be drawn four times.
    found = interquartile([0.0, 0.0], [1.0, 1.0])
    assert found == Estimate(0.5, 0.5, 0.5, 4)
    # Of two tasks with two seeds each, every draw keeps two of each: the middle half is one of each.
    found = interquartile([0.0, 1.0], [10.0, 11.0])
    assert found == Estimate(5.5, 5.0, 6.0, 4)
    assert interquartile([3.0], [4.0]) == Estimate(3.5, None, None, 2)
    assert interquartile([3.0, 4.0], [None]) == interquartile([3.0, 4.0])


@given(seeds)
def test_the_interquartile_mean_is_scipys_trimmed_mean(values):
    found = interquartile(values)
    assert found.mean == pytest.approx(trim_mean(values, 0.25))
    assert found.seeds == len(values)
    if len(values) > 1:
        assert min(values) <= found.low <= found.high <= max(values)
    assert interquartile(values[::-1]).mean == found.mean


@given(seeds, st.integers(-50, 50), st.integers(1, 8))
def test_the_interval_moves_with_the_data(values, shift, factor):
    found, moved = interquartile(values), interquartile([factor * value + shift for value in values])
    assert moved.mean == pytest.approx(factor * found.mean + shift, abs=1e-9)
    if found.low is not None:
        assert [moved.low, moved.high] == pytest.approx([factor * found.low + shift, factor * found.high + shift])


def test_the_interquartile_interval_covers_about_as_often_as_it_says():
    trials = np.random.default_rng(2).normal(size=(20, 300))  # the mean of the middle half is zero
    _, low, high = interquartile_band(trials)
    assert 0.87 < np.mean((low <= 0) & (high >= 0)) < 0.99


@given(st.integers(1, 9), st.integers(0, 5), st.integers(0, 100))
def test_a_band_is_the_estimate_at_every_point(count, points, seed):
    rng = np.random.default_rng(seed)
    each = rng.normal(size=(count, points))
    each[rng.uniform(size=each.shape) < 0.2] = math.nan
    for band, of in ((mean_band, estimate), (interquartile_band, interquartile)):
        middle, low, high, known = spread(each, band)
        for place in range(points):
            found = of(each[:, place])
            expected = [math.nan if x is None else x for x in (found.mean, found.low, found.high)]
            np.testing.assert_allclose([middle[place], low[place], high[place]], expected, rtol=1e-12)
            assert known[place] == found.seeds


def test_probabilities_of_improvement_by_hand():
    assert improvement([[1.0, 2.0]], [[0.0, 0.5]]) == Estimate(1.0, 1.0, 1.0, 4)
    assert improvement([[3.0]], [[3.0]]) == Estimate(0.5, None, None, 2)
    # Of 2 x 3 pairs: 1 beats 0, ties with 1, loses to 2; 5 beats all.
    assert improvement([[1.0, 5.0]], [[0.0, 1.0, 2.0]]).mean == pytest.approx((1 + 0.5 + 3) / 6)
    # The mean over tasks, each of the same weight whatever its seeds.
    assert improvement([[9.0], [0.0, 0.0, 0.0]], [[1.0], [1.0, 1.0]]) == Estimate(0.5, 0.5, 0.5, 7)
    assert improvement([[1.0], [None]], [[0.0], [5.0]]) == Estimate(1.0, None, None, 2)
    assert improvement([[]], [[1.0]]) == Estimate(None, None, None, 0)


def test_the_interval_of_an_improvement_by_hand():
    # x draws 0 or 1 twice, y is 0.5 always: 0, 1/2 or 1, with probabilities 1/4, 1/2, 1/4.
    assert improvement([[0.0, 1.0]], [[0.5, 0.5]]) == Estimate(0.5, 0.0, 1.0, 4)
    # Both draw so, apart from each other: in one of 16 draws all of x is below all of y. Of pairs each would be a tie.
    assert improvement([[0.0, 1.0]], [[0.0, 1.0]]) == Estimate(0.5, 0.0, 1.0, 4)


@given(tasks)
def test_improvement_is_the_statistic_of_mann_and_whitney(pairs):
    first, second = zip(*pairs, strict=True)
    found = improvement(first, second)
    shares = [mannwhitneyu(x, y).statistic / (len(x) * len(y)) for x, y in pairs]
    assert found.mean == pytest.approx(np.mean(shares))
    assert found.mean + improvement(second, first).mean == pytest.approx(1.0)
    if found.low is not None:
        assert 0 <= found.low <= found.high <= 1


@given(tasks)
def test_improvement_knows_ranks_only(pairs):
    first, second = zip(*pairs, strict=True)
    cubes = [[[value**3 for value in values] for values in side] for side in (first, second)]
    assert improvement(*cubes) == improvement(first, second)


def test_the_interval_of_an_improvement_covers_about_as_often_as_it_says():
    rng = np.random.default_rng(3)
    found = [improvement([rng.normal(size=15)], [rng.normal(size=15)]) for _ in range(150)]
    assert 0.86 < np.mean([each.low <= 0.5 <= each.high for each in found]) <= 0.99


def test_all_is_seeded():
    x, y = np.random.default_rng(0).normal(size=(2, 7))
    assert interquartile(x, y) == interquartile(x, y)
    assert improvement([x], [y]) == improvement([x], [y])
    np.testing.assert_array_equal(interquartile_mean(np.stack([x, y])), [trim_mean(x, 0.25), trim_mean(y, 0.25)])
