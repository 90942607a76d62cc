"""Statistics over seeds, and from the records of tabular runs to the rows behind each figure and table.

A record is a plain dict, as `summary.json` holds it: `env`, `size`, `agent`, the regrets with one entry per seed,
`curve` and the rest. It may carry a `label`, which then names its line instead of the agent.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cdpo.report.style import agent_label
from cdpo.tabular.regret import bootstrap_band

Record = dict[str, Any]
Row = dict[str, Any]
Cell = tuple[str, int | None]  # environment and size


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its 95% bootstrap interval. A seed without a number (null) does not count."""

    mean: float | None
    low: float | None  # none for a single seed, which says nothing about the spread
    high: float | None
    seeds: int


@dataclass(frozen=True)
class Curve:
    """One quantity over some points: every seed, and the mean with its interval."""

    x: np.ndarray  # [P]
    each: np.ndarray  # [S, P], NaN where a seed has no number
    mean: np.ndarray  # [P], as are the others
    low: np.ndarray  # NaN for a single seed, which says nothing about the spread
    high: np.ndarray
    seeds: np.ndarray

    @classmethod
    def of(cls, x: np.ndarray, each: np.ndarray) -> "Curve":
        """Without the points at which no seed has a number."""
        known = np.isfinite(each).any(axis=0) & np.isfinite(x)
        return cls(x[known], each[:, known], *_spread(each[:, known]))

    def __bool__(self) -> bool:
        """Whether there is anything to show."""
        return len(self.x) > 0


def estimate(values: Iterable[float | None]) -> Estimate:
    """The mean over seeds and its interval."""
    known = np.array([value for value in values if value is not None and math.isfinite(value)])
    if len(known) == 0:
        return Estimate(None, None, None, 0)
    if len(known) == 1:
        return Estimate(float(known[0]), None, None, 1)
    low, high = bootstrap_band(known)
    return Estimate(float(known.mean()), float(low), float(high), len(known))


def interquartile(values: Iterable[float | None]) -> Estimate:
    """The mean over the middle half of the seeds and its interval; of fewer than four seeds none is cut."""
    known = np.array([value for value in values if value is not None and math.isfinite(value)])
    if len(known) < 2:
        return estimate(known)
    draws = known[np.random.default_rng(0).integers(len(known), size=(2000, len(known)))]
    low, high = np.quantile(_middle(draws), [0.025, 0.975])
    return Estimate(float(_middle(known)), float(low), float(high), len(known))


def line(record: Record) -> str:
    """The name of a record's line in a figure and of its row in a table."""
    return str(record.get("label") or agent_label(record["agent"]))


def cell_label(cell: Cell) -> str:
    """An environment and its size in words; an MDP from a file has no size."""
    env, size = cell
    return env if size is None else f"{env}, size {size}"


def cells(records: Sequence[Record]) -> dict[Cell, list[Record]]:
    """The records by environment and size, in the order of the run."""
    found: dict[Cell, list[Record]] = {}
    for record in records:
        found.setdefault((record["env"], record["size"]), []).append(record)
    return found


def sized(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records of every environment that was run with two sizes or more, by environment."""
    found: dict[str, list[Record]] = {}
    for record in records:
        if record["size"] is not None:
            found.setdefault(record["env"], []).append(record)
    return {env: rows for env, rows in found.items() if len({row["size"] for row in rows}) >= 2}


def regret_rows(records: Sequence[Record]) -> list[Row]:
    """The data behind `regret_curves`: a row per line and step shown."""
    return [
        {**_identity(record), "steps": steps, "mean": mean, "low": low, "high": high}
        for record in records
        for steps, mean, low, high in zip(
            *(record["curve"][name] for name in ("steps", "mean", "low", "high")), strict=True
        )
    ]


def normalised_rows(records: Sequence[Record]) -> list[Row]:
    """The data behind `normalised_by_size`: a row per line and size."""
    rows = []
    for record in (record for group in sized(records).values() for record in group):
        found = estimate(record["normalised_regret"])
        rows.append(
            {
                **_identity(record),
                "mean": found.mean,
                "low": found.low,
                "high": found.high,
                "seeds": found.seeds,
            }
        )
    return rows


def seed_rows(records: Sequence[Record]) -> list[Row]:
    """Every seed's regrets: a row per line and seed."""
    regrets = ("regret", "expected_regret", "normalised_regret", "value_regret")
    return [
        {**_identity(record), "seed": seed, **{name: record[name][place] for name in regrets}}
        for record in records
        for place, seed in enumerate(record["seeds"])
    ]


def _spread(each: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """`estimate` at many points at once: values [S, P], NaN where a seed has none, to mean, low, high and seeds [P]."""
    known = np.isfinite(each)
    mean, low, high = np.full((3, each.shape[1]), np.nan)
    # Points at which the same seeds have numbers share their draws: a handful of bootstraps, however long the run.
    for pattern in np.unique(known, axis=1).T:
        points = (known == pattern[:, None]).all(axis=0)
        rows = each[np.ix_(pattern, points)]
        if len(rows) > 0:
            mean[points] = rows.mean(axis=0)
        if len(rows) > 1:
            low[points], high[points] = bootstrap_band(rows)
    return mean, low, high, known.sum(axis=0)


def _middle(values: np.ndarray) -> np.ndarray:
    """The mean of the last axis without its lowest and highest quarters, rounded down as rliable does."""
    cut = values.shape[-1] // 4
    return np.sort(values, axis=-1)[..., cut : values.shape[-1] - cut].mean(axis=-1)


def _identity(record: Record) -> Row:
    label = {"label": record["label"]} if record.get("label") else {}
    return {"env": record["env"], "size": record["size"], "agent": record["agent"], **label}
