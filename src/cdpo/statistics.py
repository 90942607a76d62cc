"""Statistics over seeds: means and interquartile means with their 95% intervals, and probabilities of improvement.

Seeds are few: of three or six, percentile bootstrap intervals hold the truth in 74% or 87% of cases. So intervals are
Student's for a mean, and so they are for an interquartile mean, with the deviation of all seeds over the root of the
number that is kept: the Winsorised deviation of Tukey and McLaughlin 1963 is of too few seeds where some fail or tie.
For a probability they are Wilson's, with as many trials as the side with fewer seeds has: a share of pairs never varies
more than that, whatever the two distributions (van Dantzig 1951), and [1, 1] is never said. `benchmarks/coverage.py`
measures all three. The interquartile mean is that of Agarwal et al. 2021 (rliable), scipy's `trim_mean` with a quarter
cut at either end, rounded down to whole seeds; the intervals are not theirs.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri, stdtrit

LEVEL = 0.95

Values = Iterable[float | None]  # of the seeds; one without a number (null) does not count
Band = tuple[np.ndarray, np.ndarray, np.ndarray]  # middle, low, high


@dataclass(frozen=True)
class Estimate:
    """A number over seeds with its 95% interval. A seed without a number (null) does not count."""

    mean: float | None
    low: float | None  # none where a side or a task has a single seed, which says nothing about the spread
    high: float | None
    seeds: int


def estimate(values: Values) -> Estimate:
    """The mean over seeds and its interval."""
    known = _known(values)
    if len(known) == 0:
        return Estimate(None, None, None, 0)
    if len(known) == 1:
        return Estimate(float(known[0]), None, None, 1)
    middle, low, high = mean_band(known)
    return Estimate(float(middle), float(low), float(high), len(known))


def interquartile(*tasks: Values) -> Estimate:
    """The mean over the middle half of the seeds, pooled over tasks, and its interval; of fewer than four none is cut.

    Tasks that are pooled must be on one scale. What varies is the seeds of each task about their own mean, with Welch's
    and Satterthwaite's degrees of freedom; of a task with a single seed it is not known, and then there is no interval.
    """
    strata = [known for values in tasks if len(known := _known(values))]
    pooled = np.concatenate([*strata, np.zeros(0)])
    if len(pooled) == 0:
        return Estimate(None, None, None, 0)
    middle = float(interquartile_mean(pooled))
    if min(map(len, strata)) < 2:
        return Estimate(middle, None, None, len(pooled))
    counts = np.array([len(known) for known in strata])
    parts = counts * [known.var(ddof=1) for known in strata]
    degrees = parts.sum() ** 2 / (parts**2 / (counts - 1)).sum() if parts.any() else 1.0
    half = float(_student(degrees) * np.sqrt(parts.sum() / len(pooled) / _kept(len(pooled))))
    return Estimate(middle, middle - half, middle + half, len(pooled))


def improvement(first: Sequence[Values], second: Sequence[Values]) -> Estimate:
    """P(X > Y), ties counting half, of a seed X of the first against a seed Y of the second; the mean over tasks.

    Both hold the values of every task, in the same order; a task in which either has none does not count. Equal numbers
    are no pairs, as two rules see different data. `seeds` counts those of both.
    """
    pairs = [(_known(x), _known(y)) for x, y in zip(first, second, strict=True)]
    pairs = [(x, y) for x, y in pairs if len(x) and len(y)]
    if not pairs:
        return Estimate(None, None, None, 0)
    middle = float(np.mean([_wins(x, y) for x, y in pairs]))
    seeds = sum(len(x) + len(y) for x, y in pairs)
    fewer = [min(len(x), len(y)) for x, y in pairs]
    if max(fewer) < 2:
        return Estimate(middle, None, None, seeds)
    # The variance of a mean over tasks, as a number of trials.
    low, high = _wilson(middle, len(fewer) ** 2 / sum(1 / count for count in fewer))
    return Estimate(middle, low, high, seeds)


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """The mean of the last axis without its lowest and highest quarters."""
    cut = values.shape[-1] // 4
    return np.sort(values, axis=-1)[..., cut : values.shape[-1] - cut].mean(axis=-1)


def mean_band(rows: np.ndarray) -> Band:
    """Mean over the first axis, low and high; of a single row all three are that row."""
    return _around(rows.mean(axis=0), rows, len(rows))


def interquartile_band(rows: np.ndarray) -> Band:
    """Interquartile mean over the first axis, low and high: `interquartile` at every point of curves [S, P]."""
    return _around(interquartile_mean(rows.T), rows, _kept(len(rows)))


def spread(
    each: np.ndarray, band: Callable[[np.ndarray], Band] = mean_band
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A band at many points: values [S, P], NaN where a seed has none, to middle, low, high and seeds [P].

    Low and high are NaN where there is a single seed.
    """
    known = np.isfinite(each)
    middle, low, high = np.full((3, each.shape[1]), np.nan)
    # Points at which the same seeds have numbers are one array: a handful, however long the run.
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


def _wins(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The share of pairs in which x [n] is above y [m]; a tie is half a win."""
    x, y = x[:, None], y[None, :]
    return ((x > y) + 0.5 * (x == y)).mean()


def _around(middle: np.ndarray, rows: np.ndarray, kept: int) -> Band:
    """Student's interval of a mean over so many of the rows."""
    if len(rows) == 1:
        return middle, middle, middle
    half = _student(len(rows) - 1) * rows.std(axis=0, ddof=1) / math.sqrt(kept)
    return middle, middle - half, middle + half


def _wilson(share: float, trials: float) -> tuple[float, float]:
    """Wilson's interval of a share, inside [0, 1]."""
    z = float(ndtri((1 + LEVEL) / 2))
    half = z * math.sqrt(share * (1 - share) / trials + (z / trials) ** 2 / 4)
    middle, scale = share + z**2 / trials / 2, 1 + z**2 / trials
    return max((middle - half) / scale, 0.0), min((middle + half) / scale, 1.0)


def _student(degrees: float) -> float:
    """How many standard errors the interval goes to either side."""
    return float(stdtrit(degrees, (1 + LEVEL) / 2))


def _kept(count: int) -> int:
    """Seeds in the middle half."""
    return count - 2 * (count // 4)
