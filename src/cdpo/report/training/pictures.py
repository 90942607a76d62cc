"""The figures of a training run, each with the rows behind it."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cdpo.report import figures, style
from cdpo.report.drawing import inline
from cdpo.report.figures import GREY, Panel
from cdpo.report.markup import Markup
from cdpo.report.parts import card
from cdpo.report.style import Look
from cdpo.report.tables import Curve, Row
from cdpo.report.training.run import Run
from cdpo.runs import RunFolder

_TRAINING = Look("#a3a3a3", (), 1.0, 0.0, 1)
_COVERAGE = {
    "test": Look("#0072b2", (), 2.0, 0.15, 14),
    "test_raw": Look("#0072b2", (1.2, 1.4), 1.3, 0.0, 12),
    "new": Look("#d55e00", (), 2.0, 0.15, 15),
    "new_raw": Look("#d55e00", (1.2, 1.4), 1.3, 0.0, 13),
}
_COVERAGE_NAMES = {
    "test": "test split, calibrated",
    "test_raw": "test split, before calibration",
    "new": "new episode, calibrated",
    "new_raw": "new episode, before calibration",
}
_FACTOR = Look("#444444", (), 1.8, 0.15, 15)
_UNSETTLED = {
    "reference": Look("#0072b2", (), 2.0, 0.15, 15),
    "sample": Look("#e69f00", (4, 1.6), 1.8, 0.13, 14),
    "optimistic": Look("#009e73", (5, 1.5, 1.2, 1.5), 1.8, 0.13, 13),
}


@dataclass(frozen=True)
class Picture:
    """A figure: panels under one legend, and the rows behind it; a comparison, which is not saved, has none."""

    stem: str
    caption: str
    legend: dict[str, Look]
    panels: list[Panel]
    rows: Callable[[], list[Row]] = list  # made when they are saved: a page does not show them

    def card(self) -> Markup:
        """As a part of a page."""
        panels = [inline(figures.alone(each.draw), f"{each.y} over {each.x}: {each.title}") for each in self.panels]
        return card(self.legend, panels, self.caption)

    def save(self, folder: Path) -> list[Path]:
        """As files, with its data."""
        figure = figures.together([panel.draw for panel in self.panels], self.legend)
        return figures.save_figure(figure, folder / self.stem, self.rows())


def write_figures(folder: RunFolder) -> list[Path]:
    """Writes the figures of a run into its folder, each with the data behind it."""
    run = Run.read(folder)
    pictures = (make(run) for make in PICTURES.values())
    return [path for picture in pictures if picture is not None for path in picture.save(folder.figures)]


def rows_of(run: Run, keys: Iterable[str]) -> list[Row]:
    """The data of quantities over episodes: the mean with its interval, then a column for every seed."""
    shared = run.steps()
    steps = {} if shared is None else dict(zip(run.episodes, shared, strict=True))
    rows = [row for key in keys for row in _curve_rows(run, key, "episode", run.curve(key))]
    for row in rows:
        row["episode"] = int(row["episode"])
        row["env_steps"] = int(steps[row["episode"]]) if row["episode"] in steps else None
    return rows


def _learning(run: Run) -> Picture | None:
    steps = run.steps()
    evaluated, trained = run.curve("eval_return", steps), run.curve("return", steps)
    look = style.looks({run.agent: run.agent})[run.agent]
    lines = [(each, curve) for each, curve in ((look, evaluated), (_TRAINING, trained)) if curve]
    if not lines:
        return None
    legend = _legend(look, evaluated) if evaluated else {}
    legend |= {"training episodes, mean": _TRAINING} if trained else {}
    stopped = " From where a seed stopped, the mean is over the others." if run.stopped else ""
    x = "episodes (their lengths differ between seeds)" if steps is None else "environment steps"
    what = "the mean over seeds with its 95% interval" if len(run.seeds) > 1 else "a single seed"
    caption = f"Evaluation return of the deterministic policy: {what}.{stopped} "
    caption += "In grey the returns of the episodes from which it learns; the first act at random."
    panel = Panel(run.task, x, "return", lines, seeds=bool(evaluated))
    return Picture("learning", caption, legend, [panel], partial(rows_of, run, ("eval_return", "return")))


def _ledger(run: Run) -> Picture | None:
    look = style.looks({run.agent: run.agent})[run.agent]
    bound = run.curve("kl_bound") if run.bounded else None
    wanted: dict[str, tuple[str, str, dict[str, Any]]] = {
        "improvement": ("Δ(t), by the reference model", "discounted value", {"level": 0.0}),
        "improvement_pi": ("V(π) − V(q), on the models of π", "discounted value", {"level": 0.0}),
        "eval_change": ("realised change", "evaluation return", {"level": 0.0}),
        "model_error": ("model error on the new episode", "standard deviations", {"zero": True, "positive": True}),
        "kl_spent": ("KL(π‖q) spent", "nats", {"zero": True}),
    }
    panels, keys, first = [], [], None
    for key, (title, y, options) in wanted.items():
        curve = run.curve(key)
        if curve:
            limit = [(GREY, bound)] if key == "kl_spent" and bound else []
            panels.append(Panel(title, "iteration", y, [(look, curve), *limit], **options))
            keys += [key, "kl_bound"] if limit else [key]
            first = first or curve
    if first is None:
        return None
    grey = {"the bound": GREY} if "kl_bound" in keys else {}
    caption = (
        "What each update promised, what the iteration brought, how wrong the model was about the steps that "
        "followed, and how far the policy moved from the referential one."
        if "improvement" in keys
        else "What each iteration brought."
    )
    return Picture("ledger", caption, _legend(look, first) | grey, panels, partial(rows_of, run, keys))


def _calibration(run: Run) -> Picture | None:
    panels, keys, used = [], [], set()
    for level in (50, 90):
        curves = {name: run.curve(f"coverage{level}_{name}") for name in _COVERAGE}
        curves = {name: curve for name, curve in curves.items() if curve}
        if curves:
            lines = [(_COVERAGE[name], curve) for name, curve in curves.items()]
            title = f"coverage of the {level}% intervals"
            panels.append(Panel(title, "iteration", "share inside", lines, seeds=False, level=level / 100, share=True))
            keys += [f"coverage{level}_{name}" for name in curves]
            used |= set(curves)
    maps = {name: curve for name in ("test", "new") if (curve := run.map(f"coverage_map_{name}"))}
    if maps:
        lines = [(_COVERAGE[name], curve) for name, curve in maps.items()]
        title = "all levels, last iteration"
        panels.append(Panel(title, "expected share", "share inside", lines, seeds=False, diagonal=True, share=True))
        used |= set(maps)
    if not panels:
        return None
    legend = {_COVERAGE_NAMES[name]: look for name, look in _COVERAGE.items() if name in used}
    scale = run.curve("scale")
    if scale:
        title = "factor by which calibration widens"
        panels.append(Panel(title, "iteration", "factor", [(_FACTOR, scale)], seeds=False, zero=True, level=1.0))
        legend["factor"] = _FACTOR
    caption = (
        "How often the truth falls inside the model's intervals, on transitions held out from training and on the "
        "steps that followed. Above the grey line the model is too careful, below it too sure."
    )
    caption += " The factor multiplies the spread of the ensemble; at 1 it stays as it is." if scale else ""

    def rows() -> list[Row]:
        levels = [_curve_rows(run, f"coverage_map_{name}", "level", curve) for name, curve in maps.items()]
        return [row for part in (rows_of(run, keys), *levels, rows_of(run, ["scale"])) for row in part]

    return Picture("calibration", caption, legend | {"as it should be": GREY}, panels, rows)


def _unsettled(run: Run) -> Picture | None:
    names = {"reference": "the reference", "sample": "a sampled model", "optimistic": "the optimistic model"}
    curves = {name: curve for name in names if (curve := run.curve(f"unsettled_{name}"))}
    if not curves:
        return None
    lines = [(_UNSETTLED[name], curve) for name, curve in curves.items()]
    title = "movement since the last iteration"
    panel = Panel(title, "iteration", "standard deviations", lines, seeds=False, zero=True, positive=True)
    caption = (
        "How far the models' predictions moved from one iteration to the next, on states visited so far. A policy "
        "that is planned on a model that moves much is changed for the model's sake rather than its own."
    )
    legend = {names[name]: _UNSETTLED[name] for name in curves}
    return Picture(
        "unsettled", caption, legend, [panel], partial(rows_of, run, [f"unsettled_{name}" for name in curves])
    )


# By their headings; the first stands above the results.
PICTURES: dict[str, Callable[[Run], Picture | None]] = {
    "Learning": _learning,
    "Improvement ledger": _ledger,
    "Calibration": _calibration,
    "How unsettled the model is": _unsettled,
}


def _legend(look: Look, curve: Curve) -> dict[str, Look]:
    if len(curve.each) == 1:
        return {"the seed": look}
    return {f"mean of {len(curve.each)} seeds": look, "each seed": style.faint(look)}


def _curve_rows(run: Run, key: str, x: str, curve: Curve) -> list[Row]:
    columns = {
        x: curve.x.tolist(),
        "mean": curve.mean.tolist(),
        "low": _known(curve.low),
        "high": _known(curve.high),
        "seeds": curve.seeds.tolist(),
        **{f"seed {seed}": _known(each) for seed, each in zip(run.seeds, curve.each, strict=True)},
    }
    names = ("quantity", *columns)
    return [dict(zip(names, (key, *row), strict=True)) for row in zip(*columns.values(), strict=True)]


def _known(values: np.ndarray) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values.tolist()]
