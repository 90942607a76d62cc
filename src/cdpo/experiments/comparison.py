"""What training runs of several agents are compared by: returns, ledger and calibration, drawn and in tables."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import MaxNLocator

from cdpo.experiments.figure import Records
from cdpo.experiments.training import COVERAGE, evaluations, held
from cdpo.report.figures import GREY, Draw, Panel, dot, look_of, save_figure, save_tables, together
from cdpo.report.style import Look
from cdpo.report.tables import Curve, Record, Row, line
from cdpo.statistics import Estimate, improvement, interquartile, interquartile_band

_QUARTERS = (0.25, 0.5, 0.75, 1.0)  # of the budget of environment steps
_ALL = "all tasks"
_LEDGER = {
    "lost_share": "share of iterations that lost return",
    "unsettled": "median movement of the planning model (z-scores)",
}


def draw_comparison(records: Records, folder: Path) -> list[Path]:
    """All figures and tables."""
    tables = {
        "returns-by-seed": seed_rows(records),
        "evaluations": evaluation_rows(records),
        "returns-at-steps": step_rows(records),
        "improvement": improvement_rows(records),
    }
    return [
        *draw_returns(records, folder / "returns"),
        *draw_ledger(records, folder),
        *draw_calibration(records, folder),
        *save_tables(tables, folder),
    ]


def draw_returns(records: Records, stem: Path, look: Mapping[str, Look] | None = None) -> list[Path]:
    """Evaluation returns over environment steps: the interquartile mean over seeds with its interval."""
    look = look_of(records) if look is None else look
    panels, rows = [], []
    for task, group in by_task(records).items():
        curves = [(record, curve) for record in group if (curve := learning_curve(record))]
        for record, curve in curves:
            rows += _curve_rows(record, "env_steps", "interquartile_mean", curve)
        lines = [(look[line(record)], curve) for record, curve in curves]
        if lines:
            panels.append(Panel(task, "environment steps", "evaluation return (IQM)", lines, seeds=False))
    if not panels:  # every seed was stopped before it was evaluated
        return []
    return save_figure(together([panel.draw for panel in panels], look), stem, rows)


def draw_ledger(records: Records, folder: Path) -> list[Path]:
    """How often iterations lost return, and how far the model moved that a rule plans on."""
    tasks = by_task(records)
    tallest = max(len(group) for group in tasks.values())
    figure = Drawing(figsize=(3.6 * len(tasks) + 1.0, 2 * (0.3 * tallest + 0.8)), layout="constrained")
    grid = figure.subplots(len(_LEDGER), len(tasks), squeeze=False, sharey="col")
    look = look_of(records)
    for column, (task, group) in enumerate(tasks.items()):
        for axes, (key, caption) in zip(grid[:, column], _LEDGER.items(), strict=True):
            told = [[seed[key] for seed in record["ledger"]] for record in group]
            if not any(value is not None for values in told for value in values):  # no agent has a model
                axes.set_axis_off()
                continue
            for place, (record, values) in enumerate(zip(group, told, strict=True)):
                dot(axes, place, values, look[line(record)].colour)
            axes.set_yticks(range(len(group)), [line(record) for record in group])
            axes.set_ylim(len(group) - 0.4, -0.6)
            axes.axvline(0, color="#999999", linewidth=0.8, zorder=1)
            axes.set_xlabel(caption)
            axes.xaxis.set_major_locator(MaxNLocator(5))
        grid[0][column].set_title(task)
    return save_figure(figure, folder / "ledger", ledger_rows(records))


def draw_calibration(records: Records, folder: Path) -> list[Path]:
    """Coverage over episodes, of agents with a model: the mean over seeds with its interval."""
    records = [record for record in records if any(episode_curve(record, key) for key in COVERAGE)]
    if not records:
        return []
    look, tasks = look_of(records), by_task(records)
    keys = [key for key in COVERAGE if any(episode_curve(record, key) for record in records)]
    draws: list[Draw] = []
    rows: list[Row] = []
    for task, group in tasks.items():
        for key in keys:
            curves = [(record, curve) for record in group if (curve := episode_curve(record, key))]
            for record, curve in curves:
                rows += [{"quantity": key, **row} for row in _curve_rows(record, "episode", "mean", curve)]
            draws.append(_coverage(task, key, [(look[line(record)], curve) for record, curve in curves]))
    # A row for each task, whatever it lacks.
    drawing = together(draws, {**look, "as it should be": GREY}, columns=len(keys) if len(tasks) > 1 else None)
    return save_figure(drawing, folder / "calibration", rows)


def _coverage(task: str, key: str, lines: list[tuple[Look, Curve]]) -> Draw:
    """The panel of `coverage50_test` and its like."""
    if not lines:
        return lambda axes: axes.set_axis_off()
    level, where = int(key[8:10]), {"test": "test split", "new": "new episodes"}[key[11:]]
    title = f"{task}: {level}% intervals, {where}"
    return Panel(title, "episode", "share inside", lines, seeds=False, level=level / 100, share=True).draw


def learning_curve(record: Record) -> Curve:
    """The interquartile mean of the last evaluations, from where every seed has one to where the last seed ends."""
    known = [(steps, values) for steps, values in evaluations(record) if len(steps)]
    if not known:
        return Curve.of(np.zeros(0), np.zeros((1, 0)))
    grid = np.unique(np.concatenate([steps for steps, _ in known]))
    grid = grid[grid >= max(steps[0] for steps, _ in known)]
    return Curve.of(grid, np.stack([held(*each, grid) for each in known]), interquartile_band)


def episode_curve(record: Record, key: str) -> Curve:
    """A quantity over episodes; a seed that was stopped has none from there on, a record of before it was told none."""
    episodes = np.arange(record["episodes"] + 1.0)
    each = np.full((len(record["seeds"]), len(episodes)), np.nan)
    for row, curve in zip(each, record["curves"], strict=True):
        known = curve.get(key, ())
        row[: len(known)] = known
    return Curve.of(episodes, each)


def seed_rows(records: Records) -> list[Row]:
    """Every seed's returns: its final evaluation, its best, and why it was stopped, if it was."""
    rows = []
    for record in records:
        for seed, final, (steps, values) in zip(record["seeds"], record["final"], evaluations(record), strict=True):
            rows.append(
                {
                    **_who(record),
                    "seed": seed,
                    "env_steps": int(steps[-1]) if len(steps) else None,
                    "evaluations": len(values),
                    "final": final,
                    "best": values.max() if len(values) else None,
                    "stopped": record["stopped"].get(str(seed)),
                }
            )
    return rows


def evaluation_rows(records: Records) -> list[Row]:
    """Every evaluation of every seed."""
    return [
        {**_who(record), "seed": seed, "env_steps": int(at), "return": value}
        for record in records
        for seed, evaluated in zip(record["seeds"], evaluations(record), strict=True)
        for at, value in zip(*evaluated, strict=True)
    ]


def step_rows(records: Records) -> list[Row]:
    """Returns at quarters of the budget, which is that of episodes as long as they can be.

    `seeds` counts those that were evaluated by then, and `reached` those that came so far; the others count with their
    last evaluation.
    """
    rows = []
    for record in records:
        budget = record["horizon"] * (record["episodes"] + 1)
        for quarter in _QUARTERS:
            at = round(quarter * budget)
            found = interquartile(float(held(*each, np.array(at))) for each in evaluations(record))
            reached = sum(curve["env_steps"][-1] >= at for curve in record["curves"] if curve["env_steps"])
            row = {"budget": quarter, "env_steps": at, **_interval("interquartile_mean", found)}
            rows.append({**_who(record), **row, "reached": reached})
    return rows


def improvement_rows(records: Records) -> list[Row]:
    """The probability that a seed of one agent ends above one of another, on each task and over all of them."""
    tasks = by_task(records)
    groups = {task: [task] for task in tasks} | ({_ALL: list(tasks)} if len(tasks) > 1 else {})
    final = {(record["task"], _name(record)): record["final"] for record in records}
    rows = []
    for group, members in groups.items():
        names = list(dict.fromkeys(_name(record) for task in members for record in tasks[task]))
        for first, second in combinations(names, 2):
            mine, other = ([final.get((task, name), []) for task in members] for name in (first, second))
            found = improvement(mine, other)
            rows.append({"task": group, "agent": first, "over": second, **_interval("probability", found)})
            # The same comparison from the other side.
            low, high = (None if limit is None else 1 - limit for limit in (found.high, found.low))
            turned = Estimate(None if found.mean is None else 1 - found.mean, low, high, found.seeds)
            rows.append({"task": group, "agent": second, "over": first, **_interval("probability", turned)})
    return rows


def ledger_rows(records: Records) -> list[Row]:
    """Every seed's ledger."""
    return [
        {**_who(record), "seed": seed, **entry}
        for record in records
        for seed, entry in zip(record["seeds"], record["ledger"], strict=True)
    ]


def by_task(records: Sequence[Record]) -> dict[str, Records]:
    """In the order of the run."""
    found: dict[str, Records] = {}
    for record in records:
        found.setdefault(record["task"], []).append(record)
    return found


def _curve_rows(record: Record, x: str, middle: str, curve: Curve) -> list[Row]:
    numbers = zip(curve.x, curve.mean, curve.low, curve.high, curve.seeds, strict=True)
    return [
        {**_who(record), x: int(at), middle: mean, "low": _known(low), "high": _known(high), "seeds": int(seeds)}
        for at, mean, low, high, seeds in numbers
    ]


def _interval(name: str, found: Estimate) -> dict[str, Any]:
    return {name: found.mean, "low": found.low, "high": found.high, "seeds": found.seeds}


def _who(record: Record) -> Row:
    return {"task": record["task"], "agent": record["agent"], **({"label": record["label"]} if record["label"] else {})}


def _name(record: Record) -> str:
    return str(record["label"] or record["agent"])


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
