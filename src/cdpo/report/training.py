"""What a page shows of training runs."""

import math
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cdpo.dynamics.calibration import LEVELS
from cdpo.errors import UserError
from cdpo.report import figures, style, tables
from cdpo.report.figures import GREY, Panel
from cdpo.report.markup import Markup, facts, flat, inline, join, number, percent, tag
from cdpo.report.style import Look, agent_label
from cdpo.report.tables import Curve, Estimate, Row
from cdpo.runs import RunFolder

_LAST = 3  # evaluations whose mean is the final evaluation
_TOLERATED = 1.1  # of the bound of the trust region; what was spent is an estimate
_STOPPED = "stopped"  # the only column of words
_LARGEST = 1e30  # beyond, a number has diverged and no axis can show it

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

NOTES = (
    "Of training runs: returns are not discounted, and higher is better. An evaluation is the mean return of several "
    "deterministic episodes; the final evaluation of a seed is the mean of its last three. The interquartile mean "
    "leaves out the lowest and the highest quarter of the seeds; brackets and bands are 95% bootstrap intervals over "
    "seeds. A seed that was stopped by bad numbers counts with the evaluations that it had. Episode 0 acts at random. "
    "Seeds are trained side by side, and a seed's time is that of the run up to its last episode. Δ(t) is what the "
    "referential update gained over the last policy, in discounted value and by the judgement of the reference model; "
    "the realised change is that of the evaluation return. Errors and movements of models are root mean squares in "
    "standard deviations of what is predicted."
)


@dataclass(frozen=True)
class Run:
    """What is known of one run: the lines of its metrics by seed and episode, and the rest."""

    folder: RunFolder
    config: dict[str, Any]
    summary: dict[str, Any]  # empty while the run is not finished
    lines: dict[tuple[int, int], dict[str, Any]]
    stopped: dict[int, str]

    @classmethod
    def read(cls, folder: RunFolder) -> "Run":
        """The run in a folder; a UserError if its metrics are not those of a training run."""
        lines = {}
        for place, line in enumerate(folder.records(), start=1):
            if not isinstance(line, dict) or not all(_is_count(line.get(key)) for key in ("seed", "episode")):
                raise _damaged(folder, f"line {place} has no seed and episode")
            lines[line["seed"], line["episode"]] = line
        finished = (folder.path / "summary.json").exists()
        summary = folder.summary if finished else {}
        if finished and not lines:
            raise _damaged(folder, "it holds nothing, though the run has finished")
        stopped = {int(seed): str(why) for seed, why in _dict(summary, "stopped").items() if seed.isdecimal()}
        return cls(folder, folder.config, summary, lines, stopped)

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

    @property
    def seeds(self) -> list[int]:
        """In order, those without any line included."""
        return sorted({seed for seed, _ in self.lines} | set(self.stopped))

    @property
    def episodes(self) -> list[int]:
        """In order."""
        return sorted({episode for _, episode in self.lines})

    def values(self, key: str) -> np.ndarray:
        """A quantity, [seeds, episodes]; NaN where it is not known."""
        shape = len(self.seeds), len(self.episodes)
        lines = [self.lines.get((seed, episode), {}) for seed in self.seeds for episode in self.episodes]
        return np.array([_float(line.get(key)) for line in lines]).reshape(shape)

    def curve(self, key: str, x: np.ndarray | None = None) -> Curve:
        """A quantity over iterations, or over `x`, one for each episode."""
        return Curve.of(np.array(self.episodes, float) if x is None else x, self.values(key))

    def steps(self) -> np.ndarray | None:
        """The environment steps after each episode; none if the seeds do not share them."""
        taken = self.values("env_steps")
        shared = np.array([next(iter(column[np.isfinite(column)]), np.nan) for column in taken.T])
        return shared if len(shared) and np.all((taken == shared) | (np.isnan(taken) & np.isfinite(shared))) else None

    def map(self, key: str) -> Curve:
        """Observed over expected coverage; of every seed the last iteration that has it."""
        rows = []
        for seed in self.seeds:
            found = [self.lines.get((seed, episode), {}).get(key) for episode in self.episodes]
            usable = [each for each in found if isinstance(each, list) and len(each) == len(LEVELS)]
            rows.append([_float(each) for each in usable[-1]] if usable else [math.nan] * len(LEVELS))
        return Curve.of(np.array(LEVELS), np.array(rows).reshape(-1, len(LEVELS)))


@dataclass(frozen=True)
class Picture:
    """A figure: panels under one legend, and the rows behind it."""

    stem: str
    caption: str
    legend: dict[str, Look]
    panels: list[Panel]
    rows: list[Row] = field(default_factory=list)


def section(name: str, folder: RunFolder) -> Markup:
    """Everything about one run."""
    run = Run.read(folder)
    versions = flat(_dict(run.config, "versions") | _dict(run.summary, "versions"))
    hardware = flat(_dict(run.config, "hardware") | _dict(run.summary, "hardware"))
    if _is_number(run.summary.get("wall_s")):
        hardware["time taken"] = _duration(run.summary["wall_s"])
    command = run.config.get("command")
    headed = [(heading, picture) for heading, make in _PICTURES.items() if (picture := make(run)) is not None]
    shown = {heading: join([tag("h3", heading), _card(picture)]) for heading, picture in headed}
    first = shown.pop(next(iter(_PICTURES)), Markup(""))
    return tag(
        "section",
        tag("h2", name),
        facts(_outline(run)),
        tag("pre", tag("code", str(command))) if command else "",
        _notices(run),
        first,
        join([tag("h3", "Results"), _results(run)]) if run.seeds else "",
        *shown.values(),
        _settings(run),
        tag("h3", "Versions and hardware") if versions or hardware else "",
        facts(versions) if versions else "",
        facts(hardware) if hardware else "",
    )


def comparison(folders: Mapping[str, RunFolder]) -> Markup:
    """The runs side by side wherever two or more of them share a task; else nothing."""
    by_task: dict[str, dict[str, Run]] = {}
    for name, folder in folders.items():
        run = Run.read(folder)
        if run.lines:
            by_task.setdefault(run.task, {})[name] = run
    shared = {task: _labelled(runs) for task, runs in by_task.items() if len(runs) >= 2}
    if not shared:
        return Markup("")
    runs = [run for group in shared.values() for run in group.values()]
    agents = {label: run.agent for group in shared.values() for label, run in group.items()}
    # A line that goes by its agent alone has the agent's own look, whatever else is shown.
    found = style.looks(dict(sorted(agents.items(), key=lambda pair: pair[0] != agent_label(pair[1]))))
    look = {label: found[label] for label in agents}
    panels = [panel for task, group in shared.items() if (panel := _overlay(task, group, look)) is not None]
    uneven = any(len({run.episodes[-1] for run in group.values()}) > 1 for group in shared.values())
    notes = [
        "Some went further than others, so that final evaluations do not compare like with like. " if uneven else "",
        "Some of the runs are not finished." if not all(run.finished for run in runs) else "",
    ]
    caption = "Evaluation return: mean over seeds, and its 95% bootstrap interval as a band."
    return tag(
        "section",
        tag("h2", "Comparison"),
        tag("p", "Training runs on the same task. ", *notes, class_="lead"),
        _card(Picture("comparison", caption, look, panels)) if panels else "",
        _compared(shared),
    )


def write_figures(folder: RunFolder) -> list[Path]:
    """Writes the figures of a run into its folder, each with the data behind it."""
    run = Run.read(folder)
    paths = []
    for make in _PICTURES.values():
        picture = make(run)
        if picture is not None:
            figure = figures.together([panel.draw for panel in picture.panels], picture.legend)
            paths += figures.save_figure(figure, folder.figures / picture.stem, picture.rows)
    return paths


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
    what = "the mean over seeds with its 95% bootstrap interval" if len(run.seeds) > 1 else "a single seed"
    caption = f"Evaluation return of the deterministic policy: {what}.{stopped} "
    caption += "In grey the returns of the episodes from which it learns; the first of them acts at random."
    panel = Panel(run.task, x, "return", lines, seeds=bool(evaluated))
    return Picture("learning", caption, legend, [panel], _rows(run, ("eval_return", "return")))


def _ledger(run: Run) -> Picture | None:
    look = style.looks({run.agent: run.agent})[run.agent]
    bounded = _dict(_dict(run.config, "settings"), "rule").get("schedule") != "none"
    bound = run.curve("kl_bound") if bounded else None
    wanted: dict[str, tuple[str, str, dict[str, Any]]] = {
        "improvement": ("Δ(t), by the reference model", "discounted value", {"level": 0.0}),
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
        "What each iteration promised, what it brought, how wrong the model was about the episode that followed, and "
        "how far the policy moved from the referential one."
        if "improvement" in keys
        else "What each iteration brought."
    )
    return Picture("ledger", caption, _legend(look, first) | grey, panels, _rows(run, keys))


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
    rows = _rows(run, keys)
    if maps:
        lines = [(_COVERAGE[name], curve) for name, curve in maps.items()]
        title = "all levels, last iteration"
        panels.append(Panel(title, "expected share", "share inside", lines, seeds=False, diagonal=True, share=True))
        used |= set(maps)
        for name, curve in maps.items():
            rows += _curve_rows(run, f"coverage_map_{name}", "level", curve)
    if not panels:
        return None
    legend = {_COVERAGE_NAMES[name]: look for name, look in _COVERAGE.items() if name in used}
    scale = run.curve("scale")
    if scale:
        title = "factor by which calibration widens"
        panels.append(Panel(title, "iteration", "factor", [(_FACTOR, scale)], seeds=False, zero=True, level=1.0))
        legend["factor"] = _FACTOR
        rows += _rows(run, ["scale"])
    caption = (
        "How often the truth falls inside the model's intervals, on transitions held out from training and on the "
        "episode that followed. Above the grey line the model is too careful, below it too sure."
    )
    caption += " The factor multiplies the spread of the ensemble; at 1 it stays as it is." if scale else ""
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
    return Picture("unsettled", caption, legend, [panel], _rows(run, [f"unsettled_{name}" for name in curves]))


# By their headings; the first stands above the results.
_PICTURES: dict[str, Callable[[Run], Picture | None]] = {
    "Learning": _learning,
    "Improvement ledger": _ledger,
    "Calibration": _calibration,
    "How unsettled the model is": _unsettled,
}


def _legend(look: Look, curve: Curve) -> dict[str, Look]:
    if len(curve.each) == 1:
        return {"the seed": look}
    return {f"mean of {len(curve.each)} seeds": look, "each seed": style.faint(look)}


def _rows(run: Run, keys: Iterable[str]) -> list[Row]:
    """The data of quantities over episodes: the mean with its interval, then a column for every seed."""
    shared = run.steps()
    steps = {} if shared is None else dict(zip(run.episodes, shared, strict=True))
    rows = [row for key in keys for row in _curve_rows(run, key, "episode", run.curve(key))]
    for row in rows:
        row["episode"] = int(row["episode"])
        row["env_steps"] = int(steps[row["episode"]]) if row["episode"] in steps else None
    return rows


def _curve_rows(run: Run, key: str, x: str, curve: Curve) -> list[Row]:
    return [
        {
            "quantity": key,
            x: float(curve.x[place]),
            "mean": float(curve.mean[place]),
            "low": _known(curve.low[place]),
            "high": _known(curve.high[place]),
            "seeds": int(curve.seeds[place]),
            **{f"seed {seed}": _known(each) for seed, each in zip(run.seeds, curve.each[:, place], strict=True)},
        }
        for place in range(len(curve.x))
    ]


def _card(picture: Picture) -> Markup:
    legend = tag("ul", *(tag("li", _swatch(each), name) for name, each in picture.legend.items()), class_="legend")
    panels = [inline(figures.alone(panel.draw), f"{panel.y} over {panel.x}: {panel.title}") for panel in picture.panels]
    return tag("figure", legend, tag("div", *panels, class_="panels"), tag("figcaption", picture.caption))


def _swatch(look: Look) -> Markup:
    dashes = {"stroke_dasharray": " ".join(f"{each * look.width:g}" for each in look.dashes)} if look.dashes else {}
    stroke = tag("line", x2="30", y1="4", y2="4", stroke=look.colour, stroke_width=f"{look.width:g}", **dashes)
    return tag("svg", stroke, width="30", height="8", aria_hidden="true")


def _outline(run: Run) -> dict[str, str]:
    seeds, planned = run.seeds, run.config.get("episodes")
    episodes = f"0 to {run.episodes[-1]:,}" if run.episodes else "none"
    if not run.finished and _is_count(planned):
        episodes += f" of {planned:,}"
    span = f" ({seeds[0]} to {seeds[-1]})" if len(seeds) > 1 else f" ({seeds[0]})" if seeds else ""
    final = tables.interquartile(_finals(run))
    about = {key: str(run.config[key]) for key in ("solver", "preset") if key in run.config}
    return {
        "kind": str(run.config["kind"]),
        "task": run.task,
        "agent": agent_label(run.agent),
        **about,
        "seeds": f"{len(seeds)}{span}",
        "episodes": episodes,
        **({"environment steps": number(_most_steps(run))} if _most_steps(run) is not None else {}),
        **({"final evaluation": _in_words(final)} if final.mean is not None else {}),
    }


def _notices(run: Run) -> Markup:
    """What a reader must know before the numbers."""
    found = []
    if not run.finished:
        told = "What follows is what it has measured so far. " if run.lines else "It has measured nothing yet. "
        command = tag("code", f"cdpo resume {shlex.quote(str(run.folder.path))}")
        found.append(tag("p", "This run is not finished. ", told, "To go on: ", command, class_="notice"))
    if run.stopped:
        listed = "; ".join(f"seed {seed} ({why})" for seed, why in sorted(run.stopped.items()))
        found.append(tag("p", f"Stopped by bad numbers: {listed}.", class_="notice"))
    return join(found)


def _results(run: Run) -> Markup:
    """A row for every seed, and below them the mean and the interquartile mean over seeds."""
    over, lost = _over_bound(run), _lost(run)
    finals, bests = _finals(run), _each(run.values("eval_return"), np.max)
    columns: dict[str, list[str]] = {
        "final evaluation": list(map(number, finals)),
        "best evaluation": list(map(number, bests)),
        "environment steps": [number(each) for each in _each(run.values("env_steps"), np.max)],
        "time": [_duration(each) for each in _each(run.values("wall_s"), np.max)],
    }
    means: list[str] = [_interval(tables.estimate(finals)), _interval(tables.estimate(bests)), "", ""]
    middles: list[str] = [_interval(tables.interquartile(finals)), _interval(tables.interquartile(bests)), "", ""]
    for head, shares in ((f"KL above {_TOLERATED:g} × bound", over), ("iterations that lost return", lost)):
        if any(each is not None for each in shares):
            columns[head] = list(map(percent, shares))
            means.append(percent(tables.estimate(shares).mean))
            middles.append("")
    if run.stopped:
        columns[_STOPPED] = [run.stopped.get(seed, "") for seed in run.seeds]
        means.append("")
        middles.append("")
    head = tag("thead", tag("tr", *(tag("th", each, scope="col") for each in ("seed", *columns))))
    rows = [
        tag("tr", tag("th", str(seed), scope="row"), *(_cell(head, column[place]) for head, column in columns.items()))
        for place, seed in enumerate(run.seeds)
    ]
    ends = [
        tag("tr", tag("th", name, scope="row"), *(tag("td", value) for value in values))
        for name, values in (("mean", means), ("interquartile mean", middles))
        if len(run.seeds) > 1
    ]
    table = tag("table", head, tag("tbody", *rows), tag("tfoot", *ends) if ends else "")
    return tag("div", table, class_="scroll", tabindex="0", role="region", aria_label="Results")


def _cell(head: str, value: str) -> Markup:
    return tag("td", value, **({"class_": "words"} if head == _STOPPED else {}))


def _settings(run: Run) -> Markup:
    """The agent's own settings; those of the parts that it shares with others are folded."""
    settings = _dict(run.config, "settings") or _dict(run.summary, "settings")
    parts = {name: flat(part) for name, part in settings.items() if isinstance(part, dict)}
    rest = {name: value for name, value in settings.items() if not isinstance(value, dict)}
    if rest:
        parts["run"] = flat(rest)
    if not parts:
        return Markup("")
    own = parts.pop("rule", {})
    own.pop("name", None)
    folded = tag("dl", *(_setting(name, part) for name, part in parts.items()), class_="settings")
    return join(
        [
            tag("h3", "Settings"),
            tag("dl", _setting(agent_label(run.agent), own), class_="settings"),
            tag("details", tag("summary", f"All others: {', '.join(parts)}"), folded) if parts else "",
        ]
    )


def _setting(name: str, part: Mapping[str, str]) -> Markup:
    pairs: list[str] = [join([tag("span", tag("i", key), " ", value), " "]) for key, value in part.items()]
    return tag("div", tag("dt", name), tag("dd", *(pairs or ["no settings"])))


def _labelled(runs: Mapping[str, Run]) -> dict[str, Run]:
    """The runs of one task by what they are called: the agent, and the run's name where agents repeat."""
    agents = [run.agent for run in runs.values()]
    return {
        agent_label(run.agent) if agents.count(run.agent) == 1 else f"{agent_label(run.agent)} ({name})": run
        for name, run in runs.items()
    }


def _overlay(task: str, group: Mapping[str, Run], look: Mapping[str, Look]) -> Panel | None:
    steps = {label: run.steps() for label, run in group.items()}
    even = all(each is not None for each in steps.values())
    x = "environment steps" if even else "episodes (their lengths differ)"
    curves = {label: run.curve("eval_return", steps[label] if even else None) for label, run in group.items()}
    lines = [(look[label], curve) for label, curve in curves.items() if curve]
    return Panel(task, x, "evaluation return", lines, seeds=False) if lines else None


def _compared(shared: Mapping[str, Mapping[str, Run]]) -> Markup:
    heads = ("agent", "final evaluation, interquartile mean", "mean", "best evaluation", "seeds", "environment steps")
    bodies = []
    for task, group in shared.items():
        title = tag("th", task, colspan=str(len(heads)), scope="rowgroup")
        bodies.append(tag("tbody", tag("tr", title, class_="group"), *(_line(*each) for each in group.items())))
    table = tag("table", tag("thead", tag("tr", *(tag("th", each, scope="col") for each in heads))), *bodies)
    return tag("div", table, class_="scroll", tabindex="0", role="region", aria_label="Final results")


def _line(label: str, run: Run) -> Markup:
    finals = _finals(run)
    soft = [] if run.finished else ["not finished"]
    soft += [f"{len(run.stopped)} stopped"] if run.stopped else []
    values: list[str] = [
        _interval(tables.interquartile(finals)),
        _interval(tables.estimate(finals)),
        number(tables.estimate(_each(run.values("eval_return"), np.max)).mean),
        str(len(run.seeds)),
        number(_most_steps(run)),
    ]
    ours = {"class_": "ours"} if run.agent == "cdpo" else {}
    head = tag("th", label, *(tag("span", f", {each}", class_="soft") for each in soft), scope="row", **ours)
    return tag("tr", head, *(tag("td", value) for value in values))


def _finals(run: Run) -> list[float | None]:
    """The mean of every seed's last three evaluations."""
    return _each(run.values("eval_return"), lambda known: known[-_LAST:].mean())


def _over_bound(run: Run) -> list[float | None]:
    """The share of every seed's iterations that spent clearly more than the bound; none where nothing is bound."""
    if _dict(_dict(run.config, "settings"), "rule").get("schedule") == "none":
        return [None] * len(run.seeds)
    return _each(run.values("kl_spent") / run.values("kl_bound"), lambda known: np.mean(known > _TOLERATED))


def _lost(run: Run) -> list[float | None]:
    """The share of every seed's evaluations that were worse than the one before."""
    return _each(run.values("eval_change"), lambda known: np.mean(known < 0))


def _each(values: np.ndarray, reduce: Callable[[np.ndarray], Any]) -> list[float | None]:
    """Of every seed's known numbers; none where there are none."""
    known = [row[np.isfinite(row)] for row in values]
    return [float(reduce(row)) if len(row) else None for row in known]


def _most_steps(run: Run) -> float | None:
    return max((each for each in _each(run.values("env_steps"), np.max) if each is not None), default=None)


def _interval(found: Estimate) -> Markup:
    interval = "" if found.low is None else f" [{number(found.low)}, {number(found.high)}]"
    return join([number(found.mean), tag("span", interval, class_="soft") if interval else ""])


def _in_words(found: Estimate) -> str:
    interval = "" if found.low is None else f" [{number(found.low)}, {number(found.high)}]"
    return number(found.mean) + interval


def _duration(seconds: float | None) -> str:
    """In the unit that fits."""
    if seconds is None:
        return "–"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


def _float(value: Any) -> float:
    return float(value) if _is_number(value) else math.nan


def _known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST


def _dict(value: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = value.get(key)
    return found if isinstance(found, dict) else {}


def _damaged(folder: RunFolder, why: str) -> UserError:
    path = str(folder.path / "metrics.jsonl")
    return UserError(f"{path!r} holds no metrics of a training run: {why}; restore it, or run it again elsewhere")
