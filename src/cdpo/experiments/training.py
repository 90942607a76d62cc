"""Cells that train: ordinary training runs in the folder of a reproduction, each summed up as one record."""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Self

import jax
import numpy as np

from cdpo.agents import RULES, Exploration
from cdpo.cells import Progress
from cdpo.report.training.run import Run, final_return, losses, lost_share
from cdpo.runs import RunFolder
from cdpo.tasks import Task, find_task
from cdpo.training.config import run_config, seed_numbers
from cdpo.training.loop import Record, Trainer, program_of
from cdpo.training.run import Journal, journal, returns_note, train_together
from cdpo.training.settings import Settings

COVERAGE = tuple(f"coverage{level}_{where}" for where in ("test", "new") for level in (50, 90))
_BY_MODELS = ("value_last", "value_q", "improvement_pi", *COVERAGE)


@dataclass(frozen=True)
class TrainingCell:
    """One agent on one task, all its seeds side by side."""

    task: str
    settings: Settings
    episodes: int
    seeds: int
    seed: int = 0
    label: str = ""
    """Names this agent where several of one rule are compared."""

    @property
    def identity(self) -> dict[str, Any]:
        """What makes two cells the same."""
        return {
            "task": self.task,
            "horizon": find_task(self.task).horizon,
            "agent": self.settings.rule.name,
            "label": self.label,
            "seeds": seed_numbers(self.seeds, self.seed),
            "episodes": self.episodes,
            "settings": self.settings.to_json(),
        }

    @property
    def later(self) -> dict[str, Any]:
        """None."""
        return {}

    @property
    def name(self) -> str:
        """Of the cell's folder: readable, and another one for other settings."""
        words = re.sub(r"[^a-z0-9.]+", "-", f"{self.task} {self.label or self.settings.rule.name}".lower())
        return f"{words}-{hashlib.sha256(json.dumps(self.identity).encode()).hexdigest()[:8]}"

    @classmethod
    def groups(cls, cells: Sequence[Self]) -> list[list[Self]]:
        """Those that share a program together, and groups of a task behind each other."""
        order, alike = [cell.task for cell in cells], defaultdict(list)
        for cell in sorted(cells, key=lambda cell: order.index(cell.task)):
            alike[cell.task, cell.episodes, program_of(cell.settings)].append(cell)
        return list(alike.values())

    @classmethod
    def run_all(cls, cells: Sequence[Self], folder: RunFolder, progress: Progress) -> None:
        """Train task by task, and on a task those side by side that share a program."""
        for _, groups in groupby(cls.groups(cells), key=lambda group: group[0].task):
            for group in groups:
                for record in cls.train(group, folder, progress):
                    folder.append(record)
            jax.clear_caches()  # the programs of a task serve no other

    @classmethod
    def train(
        cls, cells: Sequence[Self], folder: RunFolder, progress: Progress, *, taking_over: bool = False
    ) -> list[Record]:
        """Train cells that share a program, each in a folder of its own, or go on with what is there; the records.

        `taking_over` is for a process that was given what another one is thought to have died over.
        """
        task, episodes = find_task(cells[0].task), cells[0].episodes
        names = [cell.label or cell.settings.rule.name for cell in cells]
        with ExitStack() as stack:
            lanes = sum(cell.seeds for cell in cells)
            runs = [stack.enter_context(cell._journal(task, folder, lanes, taking_over)) for cell in cells]
            bar = progress(f"{task.name}, {', '.join(names)}", episodes + 1)
            bar.advance(min(run.trainer.episode for run in runs))
            summaries = train_together(runs, episodes, lambda records: bar.advance(note=returns_note(records)))
            bar.done()
        return [cell._record(run.folder, each) for cell, run, each in zip(cells, runs, summaries, strict=True)]

    def _journal(self, task: Task, home: RunFolder, lanes: int, taking_over: bool) -> AbstractContextManager[Journal]:
        """The cell's own run, in a folder of the reproduction; it begins beside others, `lanes` seeds in all."""
        path, seeds = home.inside("cells", self.name), seed_numbers(self.seeds, self.seed)
        if path.exists():
            folder = RunFolder.open(path)
        else:
            config = run_config(task, self.task, self.settings, "default", seeds, self.episodes)
            folder = RunFolder.create(path, {**config, "part_of": home.config.get("command"), "lanes": lanes})
        return journal(folder, Trainer(task, self.settings, seeds), taking_over=taking_over)

    def _record(self, folder: RunFolder, summary: dict[str, Any]) -> Record:
        """What the cell leaves behind, in plain types; `final`, `curves` and `ledger` have an entry for each seed.

        `wall_s` is the time of all `lanes` that ran side by side, those of other cells included.
        """
        run = Run.read(folder)
        return {
            **self.identity,
            "folder": self.name,
            "final": run.finals(),
            "curves": curves(run),
            "ledger": ledger(run),
            "stopped": summary["stopped"],
            "wall_s": summary["wall_s"],
            "lanes": folder.config["lanes"],
            "hardware": summary["hardware"],
        }


def curves(run: Run) -> list[Record]:
    """What each seed measured over its episodes; of models nothing where there are none."""
    told = {name for line in run.lines.values() for name in line}
    shown = ("episode", "env_steps", "return", "eval_return", *(name for name in _BY_MODELS if name in told))
    lines = [[run.lines[at] for at in sorted(run.lines) if at[0] == seed] for seed in run.seeds]
    return [{key: [line.get(key) for line in own] for key in shown} for own in lines]


def ledger(run: Run) -> list[Record]:
    """What the iterations of each seed did to its returns, models and trust region; none where nothing is known.

    How unsettled the model is that the rule plans on is told by the middle iteration: what the first ones move away
    from was fitted to next to nothing, and would be all that a mean shows.
    """
    returns = [row[np.isfinite(row)] for row in run.values("eval_return")]
    rule = RULES[run.agent]
    planned = rule.plans_on if issubclass(rule, Exploration) else None
    moved = run.values(f"unsettled_{planned}")
    spent = run.values("kl_spent") / run.values("kl_bound")
    columns = {
        "lost_share": run.lost(),
        "lost_return": [_lost_return(row) for row in returns],
        "unsettled": _over_iterations(np.median, moved),
        "kl_of_bound": _over_iterations(np.mean, spent) if run.bounded else [None] * len(run.seeds),
        "kl_overspent": run.over_bound(),
        "improvement_pi": _over_iterations(np.mean, run.values("improvement_pi")),
        **{name: _over_iterations(np.mean, run.values(name)) for name in COVERAGE},
    }
    return [dict(zip(columns, entry, strict=True)) for entry in zip(*columns.values(), strict=True)]


def evaluations(record: Record) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each seed the environment steps at which it was evaluated, and the returns."""
    found = []
    for curve in record["curves"]:
        steps, values = (np.array(curve[name], float) for name in ("env_steps", "eval_return"))
        known = np.isfinite(values)
        found.append((steps[known], values[known]))
    return found


def until(record: Record, steps: int) -> Record:
    """A record of an agent without a model, as if its seeds had ended after so many environment steps."""
    counts = [int(np.searchsorted(curve["env_steps"], steps, side="right")) for curve in record["curves"]]
    each = zip(record["curves"], counts, strict=True)
    return _with_curves(record, [{name: values[:count] for name, values in curve.items()} for curve, count in each])


def evaluation_interval(record: Record) -> int:
    """Episodes from one evaluation to the next, as they mostly are."""
    gaps = [
        np.diff([at for at, value in zip(curve["episode"], curve["eval_return"], strict=True) if value is not None])
        for curve in record["curves"]
    ]
    return int(np.median(known)) if len(known := np.concatenate(gaps)) else 1


def evaluated_every(record: Record, episodes: int) -> Record:
    """A record of an agent without a model, as if it had been evaluated so seldom. Evaluations change no run."""

    def thin(curve: Record) -> Record:
        told = zip(curve["episode"], curve["eval_return"], strict=True)
        last = curve["episode"][-1]
        return {**curve, "eval_return": [value if at % episodes == 0 or at == last else None for at, value in told]}

    return _with_curves(record, [thin(curve) for curve in record["curves"]])


def _with_curves(record: Record, curves: list[Record]) -> Record:
    """With other evaluations, and what follows from them."""
    returns = [values for _, values in evaluations({"curves": curves})]
    ledger = [
        {**entry, "lost_share": lost_share(row), "lost_return": _lost_return(row)}
        for entry, row in zip(record["ledger"], returns, strict=True)
    ]
    return {**record, "curves": curves, "final": [final_return(row) for row in returns], "ledger": ledger}


def held(steps: np.ndarray, values: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The last evaluation at or before each of `at`; NaN before the first.

    A seed that ended before, by short episodes or bad numbers, counts with the last evaluation that it had.
    """
    places = np.searchsorted(steps, at, side="right")
    return np.concatenate([[np.nan], values])[places]


def _lost_return(evaluations: np.ndarray) -> float | None:
    return float(losses(evaluations).sum()) if len(evaluations) > 1 else None


def _over_iterations(middle: Callable[[np.ndarray], Any], rows: np.ndarray) -> list[float | None]:
    """Of every seed, over what is known; none where nothing is."""
    known = [row[np.isfinite(row)] for row in rows]
    return [float(middle(row)) if len(row) else None for row in known]
