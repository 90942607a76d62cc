"""The sections about training runs: one for each, and a comparison of those that share a task."""

import shlex
from collections.abc import Mapping

from cdpo.report import style, tables
from cdpo.report.figures import Panel
from cdpo.report.markup import Markup, facts, flat, join, number, percent, tag
from cdpo.report.parts import duration, interval, plain_interval, provenance, seed_list, settings_list, table
from cdpo.report.style import Look, agent_label
from cdpo.report.training.pictures import PICTURES, Picture
from cdpo.report.training.run import LOSS, TOLERATED, Run
from cdpo.report.values import is_count, nested
from cdpo.runs import RunFolder

_STOPPED = "stopped"  # the only column of words
_LOST = "iterations that lost return"
_LOST_NOTE = (
    f"An iteration lost return if the evaluation fell by more than {percent(LOSS)} of the range of the seed's "
    "evaluations up to and including it."
)

NOTES = (
    "Of training runs: returns are not discounted, and higher is better. An evaluation is the mean return of several "
    "deterministic episodes; the final evaluation of a seed is the mean of its last three. The interquartile mean "
    "leaves out the lowest and the highest quarter of the seeds; brackets and bands are 95% intervals over seeds "
    "(Student's). A seed that was stopped by bad numbers counts with the evaluations that it had. The first episodes "
    "act at random. Seeds are trained side by side, and a seed's time is that of the run up to its last episode. Δ(t) "
    "is what the referential update gained over the last policy, in discounted value and by the judgement of the "
    "reference model; the realised change is that of the evaluation return. Errors and movements of models are root "
    "mean squares in standard deviations of what is predicted."
)


def section(name: str, folder: RunFolder) -> Markup:
    """Everything about one run."""
    run = Run.read(folder)
    command = run.config.get("command")
    headed = [(heading, picture) for heading, make in PICTURES.items() if (picture := make(run)) is not None]
    shown = {heading: join([tag("h3", heading), picture.card()]) for heading, picture in headed}
    first = shown.pop(next(iter(PICTURES)), Markup(""))
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
        provenance(run.config, run.summary),
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
    caption = "Evaluation return: mean over seeds, and its 95% interval as a band."
    return tag(
        "section",
        tag("h2", "Comparison"),
        tag("p", "Training runs on the same task. ", *notes, class_="lead"),
        Picture("comparison", caption, look, panels).card() if panels else "",
        _compared(shared),
    )


def _outline(run: Run) -> dict[str, str]:
    planned = run.config.get("episodes")
    episodes = f"0 to {run.episodes[-1]:,}" if run.episodes else "none"
    if not run.finished and is_count(planned):
        episodes += f" of {planned:,}"
    final, steps = tables.interquartile(run.finals()), run.most_steps()
    about = {key: str(run.config[key]) for key in ("solver", "learner", "preset") if key in run.config}
    return {
        "kind": str(run.config["kind"]),
        "task": run.task,
        "agent": agent_label(run.agent),
        **about,
        "seeds": seed_list(run.seeds),
        "episodes": episodes,
        **({"environment steps": number(steps)} if steps is not None else {}),
        **({"final evaluation": plain_interval(final)} if final.mean is not None else {}),
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
    over, lost = run.over_bound(), run.lost()
    finals, bests = run.finals(), run.most("eval_return")
    columns: dict[str, list[str]] = {
        "final evaluation": list(map(number, finals)),
        "best evaluation": list(map(number, bests)),
        "environment steps": [number(each) for each in run.most("env_steps")],
        "time": [duration(each) for each in run.most("wall_s")],
    }
    means: list[str] = [interval(tables.estimate(finals)), interval(tables.estimate(bests)), "", ""]
    middles: list[str] = [interval(tables.interquartile(finals)), interval(tables.interquartile(bests)), "", ""]
    for head, shares in ((f"KL above {TOLERATED:g} × bound", over), (_LOST, lost)):
        if any(each is not None for each in shares):
            columns[head] = list(map(percent, shares))
            means.append(percent(tables.estimate(shares).mean))
            middles.append("")
    if run.stopped:
        columns[_STOPPED] = [run.stopped.get(seed, "") for seed in run.seeds]
        means.append("")
        middles.append("")
    rows = [
        tag("tr", tag("th", str(seed), scope="row"), *(_cell(head, column[place]) for head, column in columns.items()))
        for place, seed in enumerate(run.seeds)
    ]
    ends = [
        tag("tr", tag("th", name, scope="row"), *(tag("td", value) for value in values))
        for name, values in (("mean", means), ("interquartile mean", middles))
        if len(run.seeds) > 1
    ]
    shown = table("Results", ["seed", *columns], tag("tbody", *rows), tag("tfoot", *ends) if ends else "")
    return join([shown, tag("p", _LOST_NOTE, class_="note") if _LOST in columns else ""])


def _cell(head: str, value: str) -> Markup:
    return tag("td", value, **({"class_": "words"} if head == _STOPPED else {}))


def _settings(run: Run) -> Markup:
    """The agent's own settings; those of the parts that it shares with others are folded."""
    settings = nested(run.config, "settings") or nested(run.summary, "settings")
    parts = {name: flat(part) for name, part in settings.items() if isinstance(part, dict)}
    rest = {name: value for name, value in settings.items() if not isinstance(value, dict)}
    if rest:
        parts["run"] = flat(rest)
    if not parts:
        return Markup("")
    own = parts.pop("rule", {})
    own.pop("name", None)
    folded = tag("details", tag("summary", f"All others: {', '.join(parts)}"), settings_list(parts)) if parts else ""
    return join([tag("h3", "Settings"), settings_list({agent_label(run.agent): own}), folded])


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
    return table("Final results", heads, *bodies)


def _line(label: str, run: Run) -> Markup:
    finals = run.finals()
    soft = [] if run.finished else ["not finished"]
    soft += [f"{len(run.stopped)} stopped"] if run.stopped else []
    values: list[str] = [
        interval(tables.interquartile(finals)),
        interval(tables.estimate(finals)),
        number(tables.estimate(run.most("eval_return")).mean),
        str(len(run.seeds)),
        number(run.most_steps()),
    ]
    ours = {"class_": "ours"} if run.agent == "cdpo" else {}
    head = tag("th", label, *(tag("span", f", {each}", class_="soft") for each in soft), scope="row", **ours)
    return tag("tr", head, *(tag("td", value) for value in values))
