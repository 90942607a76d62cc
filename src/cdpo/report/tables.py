"""Curves over seeds, and from the records of tabular runs to the rows behind each figure and table.

A record is a plain dict, as `summary.json` holds it: `env`, `size`, `agent`, the regrets with one entry per seed,
`curve` and the rest. It may carry a `label`, which then names its line instead of the agent.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from cdpo.report.style import agent_label
from cdpo.statistics import Band, estimate, mean_band, spread
from cdpo.statistics import Estimate as Estimate
from cdpo.statistics import interquartile as interquartile

Record = dict[str, Any]
Row = dict[str, Any]
Cell = tuple[str, int | None]  # environment and size


@dataclass(frozen=True)
class Curve:
    """One quantity over some points: every seed, and the mean, of the middle half or of all, with its interval."""

    x: np.ndarray  # [P]
    each: np.ndarray  # [S, P], NaN where a seed has no number
    band: Callable[[np.ndarray], Band]

    @classmethod
    def of(cls, x: np.ndarray, each: np.ndarray, band: Callable[[np.ndarray], Band] = mean_band) -> "Curve":
        """Without the points at which no seed has a number."""
        known = np.isfinite(each).any(axis=0) & np.isfinite(x)
        return cls(x[known], each[:, known], band)

    def at(self, places: np.ndarray) -> "Curve":
        """The same at some of the points alone."""
        return Curve(self.x[places], self.each[:, places], self.band)

    @cached_property
    def _spread(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        # When it is asked for: of a long run only some points are drawn, and bands are of what is shown.
        return spread(self.each, self.band)

    @property
    def mean(self) -> np.ndarray:
        """[P], as are the others."""
        return self._spread[0]

    @property
    def low(self) -> np.ndarray:
        """NaN for a single seed, which says nothing about the spread."""
        return self._spread[1]

    @property
    def high(self) -> np.ndarray:
        """NaN for a single seed."""
        return self._spread[2]

    @property
    def seeds(self) -> np.ndarray:
        """How many have a number."""
        return self._spread[3]

    def __bool__(self) -> bool:
        """Whether there is anything to show."""
        return len(self.x) > 0


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


def _identity(record: Record) -> Row:
    label = {"label": record["label"]} if record.get("label") else {}
    return {"env": record["env"], "size": record["size"], "agent": record["agent"], **label}
