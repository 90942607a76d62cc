"""Agents on HalfCheetah-v5 as Gymnasium has it, next to returns that others published for the task."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes

from cdpo.experiments.comparison import evaluation_rows, learning_curve, seed_rows
from cdpo.experiments.exploration import Budget, at_scale
from cdpo.experiments.figure import Records, Scale
from cdpo.experiments.training import TrainingCell, evaluations
from cdpo.report.figures import Panel, look_of, save_figure, save_tables, together
from cdpo.report.style import agent_label
from cdpo.report.tables import Row, line
from cdpo.statistics import interquartile
from cdpo.tasks import find_task
from cdpo.training.presets import preset

TASK = "HalfCheetah-v5"
AGENTS = ("cdpo", "mbpo", "sac")
BUDGETS: dict[Scale, Budget] = {"smoke": Budget(1, 2), "quick": Budget(5, 1), "paper": Budget(100, 6)}
_INK = "#5a5a5a"  # of what is not ours
_ROOM = 0.045  # of the height of a panel, for a name


class Reported(NamedTuple):
    """A mean over seeds, and their deviation."""

    steps: int
    mean: float
    deviation: float


# Of version 4, which pays for the same.
PUBLISHED = {
    "MBPO": (Reported(50_000, 7963, 589), Reported(100_000, 9553, 689)),
    "DHMBPO": (Reported(50_000, 7356, 3107), Reported(100_000, 9878, 3007)),
    "MACURA": (Reported(50_000, 6374, 1651), Reported(100_000, 9182, 1183)),
    "TD-MPC2": (Reported(50_000, 5139, 1225), Reported(100_000, 7251, 2186)),
    "SAC": (Reported(50_000, 5733, 521), Reported(100_000, 7039, 568)),
}


def cells(scale: Scale) -> list[TrainingCell]:
    """Each agent with its default preset."""
    episodes, seeds = BUDGETS[scale]
    settings = [preset("default", find_task(TASK), agent) for agent in AGENTS]
    return [TrainingCell(TASK, at_scale(own, scale), episodes, seeds) for own in settings]


def draw(records: Records, folder: Path) -> list[Path]:
    """Our curves, and a mark with its name for each that was published; the numbers of both in one table."""
    look = look_of(records)
    known = [(record, curve) for record in records if (curve := learning_curve(record))]
    paths = []
    if known:
        lines = [(look[line(record)], curve) for record, curve in known]
        panel = Panel(TASK, "environment steps", "evaluation return (IQM)", lines, seeds=False)

        def onto(axes: Axes) -> None:
            panel.draw(axes)
            _mark(axes)

        paths += save_figure(together([onto], look), folder / "published", _rows(records))
    tables = {"returns-by-seed": seed_rows(records), "evaluations": evaluation_rows(records)}
    return paths + save_tables(tables, folder)


def _mark(axes: Axes) -> None:
    """What was published, each with its name, where names leave each other room."""
    reports = sorted((report.steps, report.mean, name) for name, each in PUBLISHED.items() for report in each)
    axes.plot([steps for steps, _, _ in reports], [mean for _, mean, _ in reports], "D", color=_INK, markersize=3.5)
    axes.set_xlim(0, 1.17 * reports[-1][0])
    low, high = axes.get_ylim()
    high = max(high, 1.05 * max(mean for _, mean, _ in reports))
    axes.set_ylim(low, high)
    last = 0, low
    for steps, mean, name in reports:
        place = max(mean, last[1] + _ROOM * (high - low)) if last[0] == steps else mean
        last = steps, place
        axes.annotate(
            name, (steps, place), (6, 0), textcoords="offset points", va="center", fontsize=7, color=_INK, zorder=30
        )


def _rows(records: Records) -> list[Row]:
    """Ours at the evaluations nearest to the steps that others report, and theirs."""
    rows: list[Row] = []
    for record in records:
        runs = [(steps, values) for steps, values in evaluations(record) if len(steps)]
        for asked in sorted({report.steps for reports in PUBLISHED.values() for report in reports}):
            nearest = [_nearest(steps, values, asked) for steps, values in runs]
            if not nearest or max(abs(steps - asked) for steps, _ in nearest) > asked / 20:
                continue
            returns = [value for _, value in nearest]
            found = interquartile(returns)
            rows.append(
                {
                    "source": "measured",
                    "agent": agent_label(record["agent"]),
                    "env_steps": max(steps for steps, _ in nearest),
                    "mean": float(np.mean(returns)),
                    "deviation": float(np.std(returns, ddof=1)) if len(returns) > 1 else None,
                    "interquartile_mean": found.mean,
                    "low": found.low,
                    "high": found.high,
                    "seeds": found.seeds,
                }
            )
    for name, reports in PUBLISHED.items():
        for report in reports:
            told: Row = {"source": "published", "agent": name, "env_steps": report.steps}
            rows.append(told | {"mean": report.mean, "deviation": report.deviation})
    return rows


def _nearest(steps: np.ndarray, values: np.ndarray, asked: int) -> tuple[int, float]:
    """The evaluation at the steps next to those that are asked for."""
    place = np.argmin(np.abs(steps - asked))
    return int(steps[place]), float(values[place])
