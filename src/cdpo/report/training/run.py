"""A training run as its folder tells of it, and what its seeds come to."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from cdpo.dynamics.calibration import LEVELS
from cdpo.errors import UserError
from cdpo.report.tables import Curve
from cdpo.report.values import is_count, is_number, nested
from cdpo.runs import RunFolder

_LAST = 3  # evaluations whose mean is the final evaluation
_MOST = 10**7  # of seeds times episodes, most of which a folder may leave out
_SEED = re.compile(r"[0-9]{1,18}")
TOLERATED = 1.1  # of the bound of the trust region; what was spent is an estimate
LOSS = 0.01  # of the range of a seed's evaluations; what is less is the noise of a policy that has settled


@dataclass(frozen=True)
class Run:
    """What is known of one run: the lines of its metrics by seed and episode, and the rest."""

    folder: RunFolder
    config: dict[str, Any]
    summary: dict[str, Any]  # empty while the run is not finished
    lines: dict[tuple[int, int], dict[str, Any]]
    stopped: dict[int, str]
    _read: dict[str, np.ndarray] = field(default_factory=dict, repr=False)  # the values by quantity

    @classmethod
    def read(cls, folder: RunFolder) -> "Run":
        """The run in a folder; a UserError if its metrics are not those of a training run."""
        lines = {}
        for place, line in enumerate(folder.records(), start=1):
            if not isinstance(line, dict) or not all(is_count(line.get(key)) for key in ("seed", "episode")):
                raise _damaged(folder, f"line {place} has no seed and episode")
            lines[line["seed"], line["episode"]] = line
        summary = folder.summary if folder.finished else {}
        stopped = {int(seed): str(why) for seed, why in nested(summary, "stopped").items() if _SEED.fullmatch(seed)}
        if folder.finished and not (lines or stopped):
            raise _damaged(folder, "it holds nothing, though the run has finished")
        run = cls(folder, folder.config, summary, lines, stopped)
        if len(run.seeds) * len(run.episodes) > _MOST:
            raise _damaged(folder, f"it tells of {len(run.seeds):,} seeds and {len(run.episodes):,} episodes")
        return run

    @property
    def agent(self) -> str:
        """The agent's name."""
        return str(self.config.get("agent", "unknown"))

    @property
    def task(self) -> str:
        """The task's name."""
        return str(self.config.get("task_name") or self.config.get("task") or "unknown")

    @property
    def finished(self) -> bool:
        """Whether the run has come to its end; a summary that tells of fewer episodes is from before it went on."""
        returns = self.summary.get("returns")
        told = sum(len(each) for each in returns if isinstance(each, list)) if isinstance(returns, list) else None
        return bool(self.summary) and (told is None or told >= len(self.lines))

    @cached_property
    def seeds(self) -> list[int]:
        """In order, those without any line included."""
        return sorted({seed for seed, _ in self.lines} | set(self.stopped))

    @cached_property
    def episodes(self) -> list[int]:
        """In order."""
        return sorted({episode for _, episode in self.lines})

    @cached_property
    def _places(self) -> tuple[list[int], list[int]]:
        """Of every line, the place of its seed and that of its episode."""
        row = {seed: place for place, seed in enumerate(self.seeds)}
        column = {episode: place for place, episode in enumerate(self.episodes)}
        return [row[seed] for seed, _ in self.lines], [column[episode] for _, episode in self.lines]

    def values(self, key: str) -> np.ndarray:
        """A quantity, [seeds, episodes]; NaN where it is not known."""
        if key not in self._read:
            values = np.full((len(self.seeds), len(self.episodes)), np.nan)
            values[self._places] = [_float(line.get(key)) for line in self.lines.values()]
            self._read[key] = values
        return self._read[key]

    def curve(self, key: str, x: np.ndarray | None = None) -> Curve:
        """A quantity over iterations, or over `x`, one for each episode."""
        return Curve.of(np.array(self.episodes, float) if x is None else x, self.values(key))

    def steps(self) -> np.ndarray | None:
        """The environment steps after each episode; none if the seeds do not share them."""
        taken = self.values("env_steps")
        if not taken.size:
            return None
        first = np.isfinite(taken).argmax(axis=0)  # the first seed that has a number
        shared = taken[first, np.arange(taken.shape[1])]
        return shared if np.all((taken == shared) | (np.isnan(taken) & np.isfinite(shared))) else None

    def map(self, key: str) -> Curve:
        """Observed over expected coverage; of every seed the last iteration that has it."""
        last: dict[int, tuple[int, list[Any]]] = {}
        for (seed, episode), line in self.lines.items():
            levels = line.get(key)
            if isinstance(levels, list) and len(levels) == len(LEVELS) and episode >= last.get(seed, (0,))[0]:
                last[seed] = episode, levels
        none = 0, [math.nan] * len(LEVELS)
        rows = [[_float(each) for each in last.get(seed, none)[1]] for seed in self.seeds]
        return Curve.of(np.array(LEVELS), np.array(rows).reshape(-1, len(LEVELS)))

    def finals(self) -> list[float | None]:
        """The mean of every seed's last three evaluations; none, here and below, for a seed that has no number."""
        return [final_return(row[np.isfinite(row)]) for row in self.values("eval_return")]

    def most(self, key: str) -> list[float | None]:
        """The largest of every seed's values."""
        return _each(self.values(key), np.max)

    def most_steps(self) -> float | None:
        """The environment steps of the seed that made most."""
        return max((each for each in self.most("env_steps") if each is not None), default=None)

    @property
    def bounded(self) -> bool:
        """Whether anything holds the policy to the bound that is measured."""
        return nested(nested(self.config, "settings"), "rule").get("schedule") != "none"

    def over_bound(self) -> list[float | None]:
        """The share of every seed's iterations that spent clearly more than the bound; none where nothing is bound."""
        if not self.bounded:
            return [None] * len(self.seeds)
        return _each(self.values("kl_spent") / self.values("kl_bound"), lambda known: np.mean(known > TOLERATED))

    def lost(self) -> list[float | None]:
        """The share of every seed's evaluations that lost return; none for a seed with fewer than two."""
        return [lost_share(row[np.isfinite(row)]) for row in self.values("eval_return")]


def final_return(evaluations: np.ndarray) -> float | None:
    """The mean of a seed's last three evaluations, or of as many as there are."""
    return float(evaluations[-_LAST:].mean()) if len(evaluations) else None


def lost_share(evaluations: np.ndarray) -> float | None:
    """Of a seed's evaluations [n] after its first, the share that lost return; none if there is no other.

    >>> lost_share(np.array([0.0, 100.0, 99.5, 98.0]))
    0.3333333333333333
    """
    return float(np.mean(losses(evaluations) > 0)) if len(evaluations) > 1 else None


def losses(evaluations: np.ndarray) -> np.ndarray:
    """What each of a seed's evaluations [n] after its first has lost, [n - 1]; 0 where it lost nothing.

    An evaluation lost return if it fell, from the one before, by more than `LOSS` of the range of those up to and
    including it. That has no unit, so that tasks compare, and what comes later does not change it.
    """
    falls = -np.diff(evaluations)
    ranges = np.maximum.accumulate(evaluations) - np.minimum.accumulate(evaluations)
    return np.where(falls > LOSS * ranges[1:], falls, 0.0)


def _each(values: np.ndarray, reduce: Callable[[np.ndarray], Any]) -> list[float | None]:
    """Of every seed's known numbers; none where there are none."""
    known = [row[np.isfinite(row)] for row in values]
    return [float(reduce(row)) if len(row) else None for row in known]


def _float(value: Any) -> float:
    return float(value) if is_number(value) else math.nan


def _damaged(folder: RunFolder, why: str) -> UserError:
    path = str(folder.path / "metrics.jsonl")
    return UserError(f"{path!r} holds no metrics of a training run: {why}; restore it, or run it again elsewhere")
