"""Statistics over seeds: means and interquartile means with bootstrap intervals, and probabilities of improvement.

Intervals are percentile bootstrap intervals over seeds, and seeded: the same data give the same interval. Where several
tasks are pooled, the seeds of each task are drawn among themselves, so that every task keeps its weight. Definitions
are those of Agarwal et al. 2021 (rliable): the interquartile mean is scipy's `trim_mean` with a quarter cut at either
end, rounded down to whole seeds.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000
LEVEL = 0.95
_AT_ONCE = 256  # points of a curve: their draws fit a processor's cache

Values = Iterable[float | None]  # of the seeds; one without a number (null) does not count
Band = tuple[np.ndarray, np.ndarray, np.ndarray]  # middle, low, high


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its 95% bootstrap interval. A seed without a number (null) does not count."""

    mean: float | None
    low: float | None  # none for a single seed, which says nothing about the spread
    high: float | None
    seeds: int


def estimate(values: Values) -> Estimate:
    """The mean over seeds and its interval."""
    known = _known(values)
    if len(known) == 0:
        return Estimate(None, None, None, 0)
    if len(known) == 1:
        return Estimate(float(known[0]), None, None, 1)
    low, high = bootstrap_band(known)
    return Estimate(float(known.mean()), float(low), float(high), len(known))


def interquartile(*tasks: Values) -> Estimate:
    """The mean over the middle half of the seeds, pooled over tasks, and its interval; of fewer than four none is cut.

    Tasks that are pooled must be on one scale.
    """
    strata = [known for values in tasks if len(known := _known(values))]
    pooled = np.concatenate([*strata, np.zeros(0)])
    if max(map(len, strata), default=0) < 2:  # nothing to draw from
        middle = float(interquartile_mean(pooled)) if len(pooled) else None
        return Estimate(middle, None, None, len(pooled))
    rng = np.random.default_rng(0)
    draws = np.concatenate([known[_resampled(len(known), rng)] for known in strata], axis=1)
    low, high = _percentiles(interquartile_mean(draws))
    return Estimate(float(interquartile_mean(pooled)), float(low), float(high), len(pooled))


def improvement(first: Sequence[Values], second: Sequence[Values]) -> Estimate:
    """P(X > Y), ties counting half, of a seed X of the first against a seed Y of the second; the mean over tasks.

    Both hold the values of every task, in the same order; a task in which either has none does not count. The seeds of
    the two are drawn apart from each other: equal numbers are no pairs, as two rules see different data. `seeds` counts
    those of both.
    """
    pairs = [(_known(x), _known(y)) for x, y in zip(first, second, strict=True)]
    pairs = [(x, y) for x, y in pairs if len(x) and len(y)]
    if not pairs:
        return Estimate(None, None, None, 0)
    middle = float(np.mean([_wins(x, y) for x, y in pairs]))
    seeds = sum(len(x) + len(y) for x, y in pairs)
    if max(max(len(x), len(y)) for x, y in pairs) < 2:
        return Estimate(middle, None, None, seeds)
    rng = np.random.default_rng(0)
    draws = [_wins(x[_resampled(len(x), rng)], y[_resampled(len(y), rng)]) for x, y in pairs]
    low, high = _percentiles(np.mean(draws, axis=0))
    return Estimate(middle, float(low), float(high), seeds)


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """The mean of the last axis without its lowest and highest quarters."""
    cut = values.shape[-1] // 4
    return np.sort(values, axis=-1)[..., cut : values.shape[-1] - cut].mean(axis=-1)


def bootstrap_band(rows: np.ndarray, level: float = LEVEL, resamples: int = RESAMPLES) -> tuple[np.ndarray, np.ndarray]:
    """Interval of the mean over the first axis."""
    # As weights of the rows: scipy's bootstrap copies the rows for every resample, which for curves is much memory.
    # What was drawn several times is computed once: of six rows there are 462 different resamples.
    rng = np.random.default_rng(0)
    counts = rng.multinomial(len(rows), np.full(len(rows), 1 / len(rows)), size=resamples)
    different, times = np.unique(counts, axis=0, return_counts=True)
    columns, weight = rows.reshape(len(rows), -1), different.T / len(rows)
    parts = range(0, columns.shape[1], _AT_ONCE)
    found = [_repeated_percentiles(columns[:, start : start + _AT_ONCE].T @ weight, times, level) for start in parts]
    low, high = np.concatenate([np.zeros((2, 0)), *found], axis=1).reshape(2, *rows.shape[1:])
    return low, high


def mean_band(rows: np.ndarray) -> Band:
    """Mean over the first axis, low and high."""
    return rows.mean(axis=0), *bootstrap_band(rows)


def interquartile_band(rows: np.ndarray) -> Band:
    """Interquartile mean over the first axis, low and high: `interquartile` at every point of curves [S, P]."""
    drawn = _resampled(len(rows), np.random.default_rng(0))
    # Point by point: all draws of all points at once would be much memory.
    limits = [_percentiles(interquartile_mean(column[drawn])) for column in rows.T]
    low, high = np.array(limits).reshape(-1, 2).T
    return interquartile_mean(rows.T), low, high


def spread(
    each: np.ndarray, band: Callable[[np.ndarray], Band] = mean_band
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A band at many points: values [S, P], NaN where a seed has none, to middle, low, high and seeds [P].

    Low and high are NaN where there is a single seed.
    """
    known = np.isfinite(each)
    middle, low, high = np.full((3, each.shape[1]), np.nan)
    # Points at which the same seeds have numbers share their draws: a handful of bootstraps, however long the run.
    patterns, which = np.unique(known, axis=1, return_inverse=True)
    for place, pattern in enumerate(patterns.T):
        points = which.ravel() == place
        rows = each[np.ix_(pattern, points)]
        if len(rows) == 1:
            middle[points] = rows[0]
        if len(rows) > 1:
            middle[points], low[points], high[points] = band(rows)
    return middle, low, high, known.sum(axis=0)


def _known(values: Values) -> np.ndarray:
    return np.array([value for value in values if value is not None and math.isfinite(value)])


def _resampled(count: int, rng: np.random.Generator) -> np.ndarray:
    """Places [resamples, count], drawn with replacement."""
    return rng.integers(count, size=(RESAMPLES, count))


def _wins(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The share of pairs in which x [..., n] is above y [..., m]; a tie is half a win."""
    x, y = x[..., :, None], y[..., None, :]
    return ((x > y) + 0.5 * (x == y)).mean(axis=(-2, -1))


def _repeated_percentiles(draws: np.ndarray, times: np.ndarray, level: float) -> np.ndarray:
    """`_percentiles`, [2, n], of draws [n, different] of which each came so many times."""
    order = np.argsort(draws, axis=1)
    reached = np.cumsum(times[order], axis=1)  # how many draws are not above this one

    def at(rank: int) -> np.ndarray:
        place = (reached > rank).argmax(axis=1)[:, None]
        return np.take_along_axis(draws, np.take_along_axis(order, place, axis=1), axis=1)[:, 0]

    ranks = np.array(_tails(level)) * (times.sum() - 1)
    return np.array([_between(at(int(rank)), at(math.ceil(rank)), rank % 1) for rank in ranks])


def _between(low: np.ndarray, high: np.ndarray, share: float) -> np.ndarray:
    """Rounded as numpy's quantiles are."""
    return high - (high - low) * (1 - share) if share >= 0.5 else low + (high - low) * share


def _percentiles(draws: np.ndarray, level: float = LEVEL) -> tuple[np.ndarray, np.ndarray]:
    """The middle `level` of the first axis."""
    low, high = (np.quantile(draws, share, axis=0) for share in _tails(level))
    return low, high


def _tails(level: float) -> tuple[float, float]:
    """The shares of draws that are below the middle `level`, and not above it."""
    tail = (1 - level) / 2
    return tail, 1 - tail
