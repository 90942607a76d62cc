"""Figures from plain records. The same panels make one figure for a paper, or one small figure each for a page."""

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from cdpo.files import write_atomic
from cdpo.report import style
from cdpo.report.style import Look
from cdpo.report.tables import Curve, Record, Row, cell_label, cells, line, sized
from cdpo.statistics import Estimate, estimate

_PANEL = (4.4, 3.0)  # inches; on a page a panel is as wide as a phone
_STRETCHES = 200  # of a line: narrower than a reader can see, few enough for a small drawing; the rows keep all points

_DECADES = 30.0  # ratio of the largest to the smallest from which an axis may be logarithmic

GREY = Look("#8a8a8a", (4, 1.6), 1.2, 0.0, 5)  # of what lines are compared with

Draw = Callable[[Axes], None]


@dataclass(frozen=True)
class Panel:
    """One set of axes. `lines` are looks and curves; of the first also every seed is drawn, if asked for."""

    title: str
    x: str
    y: str
    lines: list[tuple[Look, Curve]]
    seeds: bool = True
    zero: bool = False  # whether the axis of y holds zero
    level: float | None = None  # a horizontal line to compare with
    diagonal: bool = False
    share: bool = False  # whether y is a share, shown from none to all
    positive: bool = False  # a size, whose axis is logarithmic if it spans much

    def draw(self, axes: Axes) -> None:
        """Onto the axes."""
        if self.level is not None:
            axes.axhline(self.level, **stroke(GREY))
        if self.diagonal:
            axes.plot([0, 1], [0, 1], **stroke(GREY))
        shown = [(look, curve.at(places_seen(np.nanmean(curve.each, axis=0)))) for look, curve in self.lines]
        for look, curve in shown:
            band(axes, curve.x, curve.mean, curve.low, curve.high, look)
        look, first = self.lines[0]
        for each in first.each if self.seeds and len(first.each) > 1 else ():
            known = np.flatnonzero(np.isfinite(each))
            places = known[places_seen(each[known])]
            axes.plot(
                first.x[places], each[places], marker=_dot(len(places)), markersize=3, **stroke(style.faint(look))
            )
        seen = np.concatenate([curve.mean for _, curve in shown])
        wide = self.positive and seen.min() > 0 and seen.max() > _DECADES * seen.min()
        dress(axes, self.title, self.x, self.y + (" (log)" if wide else ""), zero=self.zero and not wide)
        if wide:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
        if self.share:
            axes.set_ylim(0, 1)
        if self.diagonal:
            axes.set_xlim(0, 1)
        else:
            axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))


def regret_curves(records: Sequence[Record]) -> Figure:
    """Cumulative realised regret over steps with its band: a panel per environment and size, a line per agent."""
    return together(_regret_draws(records), look_of(records))


def regret_panels(records: Sequence[Record]) -> list[Figure]:
    """The panels of `regret_curves` one by one, without the legend."""
    return [alone(draw) for draw in _regret_draws(records)]


def normalised_by_size(records: Sequence[Record]) -> Figure:
    """Mean normalised regret over size with its 95% interval: a panel per environment, a line per agent.

    Environments with fewer than two sizes are left out; a ValueError if none is left.
    """
    draws = _size_draws(records)
    if not draws:
        raise ValueError("no environment was run with two sizes or more")
    return together(draws, look_of([record for group in sized(records).values() for record in group]))


def normalised_panels(records: Sequence[Record]) -> list[Figure]:
    """The panels of `normalised_by_size` one by one, without the legend; none for fewer than two sizes."""
    return [alone(draw) for draw in _size_draws(records)]


def look_of(records: Sequence[Record]) -> dict[str, Look]:
    """The look of every line, in the order of the legend."""
    return style.looks({line(record): record["agent"] for record in records})


def save_figure(figure: Figure, stem: Path, rows: list[Row]) -> list[Path]:
    """Writes `stem`.png, `stem`.svg and, with the data behind the figure, `stem`.csv."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    parts = {".png": style.png(figure), ".svg": style.svg(figure), ".csv": csv_bytes(rows)}
    paths = []
    for suffix, data in parts.items():
        path = stem.parent / (stem.name + suffix)  # with_suffix would cut "eta-0.2" short
        write_atomic(path, data)
        paths.append(path)
    return paths


def save_tables(tables: Mapping[str, list[Row]], folder: Path) -> list[Path]:
    """Writes each as `folder`/name.csv."""
    paths = []
    for name, rows in tables.items():
        paths.append(folder / f"{name}.csv")
        write_atomic(paths[-1], csv_bytes(rows))
    return paths


def csv_bytes(rows: list[Row]) -> bytes:
    """Rows as a CSV file; the columns are those of all rows, in the order in which they first appear."""
    text = io.StringIO()
    kinds = dict.fromkeys(tuple(row) for row in rows)  # few, however many rows
    columns = list(dict.fromkeys(name for kind in kinds for name in kind))
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([row.get(name) for name in columns] for row in rows)
    return text.getvalue().encode(errors="replace")


def _regret_draws(records: Sequence[Record]) -> list[Draw]:
    look = look_of(records)

    def panel(title: str, group: list[Record]) -> Draw:
        def draw(axes: Axes) -> None:
            for record in group:
                _curve(axes, record, look[line(record)])
            dress(axes, title, "steps", "cumulative regret")
            axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))

        return draw

    return [panel(cell_label(cell), group) for cell, group in cells(records).items()]


def _size_draws(records: Sequence[Record]) -> list[Draw]:
    look = look_of(records)

    def panel(title: str, group: list[Record]) -> Draw:
        def draw(axes: Axes) -> None:
            by_line: dict[str, list[Record]] = {}
            for record in group:
                by_line.setdefault(line(record), []).append(record)
            for name, own in by_line.items():
                _sizes(axes, sorted(own, key=lambda record: record["size"]), look[name])
            dress(axes, title, "size", "normalised regret")
            axes.set_xticks(_ticks({record["size"] for record in group}))

        return draw

    return [panel(env, group) for env, group in sized(records).items()]


def _curve(axes: Axes, record: Record, look: Look) -> None:
    steps, mean, low, high = (np.array(record["curve"][name], dtype=float) for name in ("steps", "mean", "low", "high"))
    band(axes, steps, mean, low, high, look)


def band(axes: Axes, x: np.ndarray, mean: np.ndarray, low: np.ndarray, high: np.ndarray, look: Look) -> None:
    """A line with the interval around it."""
    if len(x) == 0:
        return
    shown = places_seen(mean)
    x, mean, low, high = x[shown], mean[shown], low[shown], high[shown]
    axes.fill_between(x, low, high, color=look.colour, alpha=look.band, linewidth=0, zorder=look.order - 10)
    axes.plot(x, mean, marker=_dot(len(x)), markersize=5, **stroke(look))


def places_seen(values: np.ndarray) -> np.ndarray:
    """The points of a line, of which NaN are not drawn, that make what a reader sees.

    Of a long line they are its ends, and the highest and the lowest point of each short stretch.
    """
    if len(values) <= 2 * _STRETCHES:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), _STRETCHES + 1).astype(int)[:-1]
    lowest, highest = np.where(np.isnan(values), np.inf, values), np.where(np.isnan(values), -np.inf, values)
    found = [start + part.argmin() for start, part in zip(edges, np.split(lowest, edges[1:]), strict=True)]
    found += [start + part.argmax() for start, part in zip(edges, np.split(highest, edges[1:]), strict=True)]
    return np.unique([0, *found, len(values) - 1])


def dot(axes: Axes, place: int, values: Iterable[float | None], colour: str) -> Estimate:
    """A row of a chart: the mean over seeds and its interval, and a small tick for each seed."""
    known = np.array([value for value in values if value is not None], float)
    found = estimate(known)
    axes.plot(known, np.full(len(known), place), "|", color=colour, alpha=0.35, markersize=7)
    if found.low is not None and found.high is not None:
        axes.plot([found.low, found.high], [place, place], color=colour, linewidth=2.4, solid_capstyle="butt")
    if found.mean is not None:
        axes.plot(found.mean, place, "o", color=colour, markersize=5.5)
    return found


def _sizes(axes: Axes, records: list[Record], look: Look) -> None:
    found = [(record["size"], estimate(record["normalised_regret"])) for record in records]
    points = [(size, each.mean, each.low, each.high) for size, each in found if each.mean is not None]
    size, mean, low, high = np.array(points, dtype=float).reshape(-1, 4).T
    axes.plot(size, mean, marker="o", markersize=2 + 1.2 * look.width, markeredgewidth=0, **stroke(look))
    axes.vlines(size, low, high, color=look.colour, linewidth=0.7 * look.width, alpha=0.6, zorder=look.order)


def _dot(points: int) -> str:
    """The marker of a line: a single point would be invisible without."""
    return "o" if points == 1 else ""


def stroke(look: Look) -> dict[str, Any]:
    """A look in matplotlib's words."""
    dashes = (0, look.dashes) if look.dashes else "solid"
    return {"color": look.colour, "linestyle": dashes, "linewidth": look.width, "zorder": look.order}


def dress(axes: Axes, title: str, x: str, y: str, *, zero: bool = True) -> None:
    """Names and ticks; `zero` is for what is read from zero, as regret is."""
    axes.set_title(style.plain(title))
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(axis="x", visible=False)
    _shown(axes)
    if zero:
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, 0.0), max(high, 0.0))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))


def _shown(axes: Axes) -> None:
    """Of bands no more than twice what the lines span: an interval of two seeds is far wider than they are apart."""
    each = [np.asarray(line.get_ydata(), dtype=float) for line in axes.lines]
    values = np.concatenate([*each, np.zeros(0)])
    values = values[np.isfinite(values)]
    span = np.ptp(values) if len(values) else 0.0
    if span > 0 and len(axes.collections):
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, values.min() - 2 * span), min(high, values.max() + 2 * span))


def _ticks(sizes: set[int]) -> list[int]:
    """The sizes that were run, or of many an even choice."""
    ordered = sorted(sizes)
    return ordered[:: math.ceil(len(ordered) / 8)]


def alone(draw: Draw) -> Figure:
    """One panel without a legend."""
    with style.house():
        figure = Figure(figsize=_PANEL, layout="constrained")
        draw(figure.add_subplot())
    return figure


def together(draws: list[Draw], look: Mapping[str, Look], columns: int | None = None) -> Figure:
    """All panels in a grid under one legend, in as many columns as look well if none are given."""
    names = [style.plain(name) for name in look]
    columns = columns or {1: 1, 2: 2, 4: 2}.get(len(draws), 3)
    rows = math.ceil(len(draws) / columns)
    width = _PANEL[0] * columns if columns > 1 else 1.25 * _PANEL[0]
    # A sign is about 0.075 inches wide, and a handle with its gaps about 0.55.
    per_row = max(1, int(width / (0.55 + 0.075 * max(map(len, names), default=1))))
    lines = math.ceil(len(names) / per_row)
    with style.house():
        height = _PANEL[1] * (rows if columns > 1 else 1.15) + 0.2 * lines
        figure = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08))
        for place, draw in enumerate(draws, start=1):
            draw(figure.add_subplot(rows, columns, place))
        handles = [Line2D([], [], **stroke(each)) for each in look.values()]
        if handles:
            figure.legend(handles, names, loc="outside upper center", ncols=min(per_row, len(names)))
    return figure
