"""Variants of agents, held against each other: the tuning of every rule, and which settings make CDPO learn.

Where variants differ in numbers only, they are trained side by side by one program.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import MaxNLocator

from cdpo.experiments.comparison import by_task, evaluation_rows
from cdpo.experiments.exploration import RULES, Budget, rule_settings
from cdpo.experiments.figure import Records, Scale
from cdpo.experiments.training import TrainingCell, evaluations
from cdpo.report.figures import dot, save_figure, save_tables
from cdpo.report.style import agent_label, looks
from cdpo.report.tables import Row, line
from cdpo.statistics import interquartile
from cdpo.training.settings import Settings

Changes = dict[str, dict[str, Any]]

FIRST_SEED = 100  # what is compared in the end has other seeds

# How far optimism reaches, by task: what a policy may choose adds up over the dimensions of a state.
BETAS = {"pendulum-swingup-0.1": (0.5, 1.0, 2.0), "half-cheetah": (0.03, 0.1, 0.3)}
TUNING: dict[Scale, dict[str, Budget]] = {
    "smoke": {"pendulum-swingup-0.1": Budget(2, 2)},
    "quick": {"pendulum-swingup-0.1": Budget(8, 2)},
    "paper": {"pendulum-swingup-0.1": Budget(20, 3), "half-cheetah": Budget(15, 3)},
}

# One change at a time to the settings of a task: halves and doubles are of these.
VARIANTS: dict[str, Callable[[Settings], Changes]] = {
    "default": lambda s: {},
    "rollouts from initial states": lambda s: {"dyna": {"initial": 1.0, "visited": 0.0, "broad": 0.0}},
    "rollouts from visited states": lambda s: {"dyna": {"initial": 0.0, "visited": 1.0, "broad": 0.0}},
    "no real data": lambda s: {"dyna": {"real": 0.0}},
    "half of the data real": lambda s: {"dyna": {"real": 0.5}},
    "kl 0.03": lambda s: {"rule": {"kl": 0.03}},
    "kl 0.3": lambda s: {"rule": {"kl": 0.3}},
    "kl 1": lambda s: {"rule": {"kl": 1.0}},
    "no bound": lambda s: {"rule": {"schedule": "none"}},
    "half the noise": lambda s: {"sac": {"deviation": s.sac.deviation / 2}},
    "twice the noise": lambda s: {"sac": {"deviation": 2 * s.sac.deviation}},
    "noise held by the entropy": lambda s: {"sac": {"holds": "entropy"}},
    "rollouts half as long": lambda s: {"dyna": {"horizon": max(1, s.dyna.horizon // 2)}},
    "rollouts twice as long": lambda s: {"dyna": {"horizon": 2 * s.dyna.horizon}},
    "returns of one step": lambda s: {"dyna": {"returns": 1}},
    "returns of five steps": lambda s: {"dyna": {"returns": 5}},
    "half the updates": lambda s: {"dyna": {"updates": max(1, s.dyna.updates // 2)}},
    "twice the updates": lambda s: {"dyna": {"updates": 2 * s.dyna.updates}},
    "one step of the critics per update": lambda s: {"sac": {"critic_steps": 1}},
    "four steps of the critics per update": lambda s: {"sac": {"critic_steps": 4}},
    "a critic for each model": lambda s: {"sac": {"critic": "per-model"}},
    "one critic for all models": lambda s: {"sac": {"critic": "pooled"}},
    "a quarter of the model steps": lambda s: {"ensemble": {"steps": max(1, s.ensemble.steps // 4)}},
    "narrow models": lambda s: {"ensemble": {"hidden": tuple(size // 2 for size in s.ensemble.hidden)}},
    "wide models": lambda s: {"ensemble": {"hidden": tuple(size * 2 for size in s.ensemble.hidden)}},
    "3 heads": lambda s: {"ensemble": {"heads": 3}, "rule": {"models": 3}},
    "Gaussian heads": lambda s: {"ensemble": {"likelihood": "gaussian"}},
    "heads on disjoint data": lambda s: {"ensemble": {"data": "disjoint"}},
    "reference: mean of the heads": lambda s: {"rule": {"reference": "mean"}},
    "reference: running average": lambda s: {"rule": {"reference": "average"}},
    "models: mixes of the heads": lambda s: {"rule": {"sampling": "mix"}},
}
_FEW = ("default", "rollouts from visited states", "kl 0.3", "3 heads")  # for a look at how it works
SETTINGS: dict[Scale, dict[str, Budget]] = {
    "smoke": {"pendulum-swingup-0.1": Budget(2, 2)},
    "quick": {"pendulum-swingup-0.1": Budget(8, 2)},
    "paper": {"pendulum-swingup-0.1": Budget(20, 3), "half-cheetah": Budget(10, 3)},
}


def tuning(scale: Scale) -> list[TrainingCell]:
    """Every rule with as many trials."""
    return [
        _cell(task, rule_settings(task, rule, scale).changed(**changes), budget, f"{agent_label(rule)}, {label}")
        for task, budget in TUNING[scale].items()
        for rule in RULES
        for label, changes in trials_of(rule, task).items()
    ]


def trials_of(rule: str, task: str) -> dict[str, Changes]:
    """Three: of the rule's own number where it has one, of the noise of its policy where it has none."""
    if rule == "cdpo":
        return {f"kl {kl:g}": {"rule": {"kl": kl}} for kl in (0.03, 0.1, 0.3)}
    if rule == "hucrl":
        return {f"beta {beta:g}": {"rule": {"beta": beta}} for beta in BETAS[task]}
    return {f"deviation {deviation:g}": {"sac": {"deviation": deviation}} for deviation in (0.1, 0.2, 0.4)}


def settings(scale: Scale) -> list[TrainingCell]:
    """CDPO with one setting changed at a time; a variant that is the default of a task is left out there."""
    found = []
    for task, budget in SETTINGS[scale].items():
        start = rule_settings(task, "cdpo", scale)
        for label, change in VARIANTS.items():
            changed = start.changed(**change(start))
            if (label == "default" or changed != start) and (scale != "smoke" or label in _FEW):
                found.append(_cell(task, changed, budget, label))
    return found


def draw_trials(records: Records, folder: Path) -> list[Path]:
    """How good every variant became, and how soon: a dot, its interval and a tick for each seed."""
    tasks = by_task(records)
    tallest = max(len(group) for group in tasks.values())
    figure = Drawing(figsize=(5.6 * len(tasks) + 2.6, 0.28 * tallest + 1.2), layout="constrained")
    grid = figure.subplots(1, 2 * len(tasks), squeeze=False)[0]
    for (task, group), good, soon in zip(tasks.items(), grid[::2], grid[1::2], strict=True):
        for place, record in enumerate(group):
            colour = looks({"": record["agent"]})[""].colour
            dot(good, place, record["final"], colour)
            dot(soon, place, means(record), colour)
        good.set_title(task)
        good.set_yticks(range(len(group)), [line(record) for record in group])
        soon.set_yticks(range(len(group)), [""] * len(group))
        for axes, caption in ((good, "final evaluation return"), (soon, "mean of all evaluations")):
            axes.set_ylim(len(group) - 0.4, -0.6)
            axes.set_xlabel(caption)
            axes.xaxis.set_major_locator(MaxNLocator(5))
    tables = {"evaluations": evaluation_rows(records)}
    return [*save_figure(figure, folder / "trials", trial_rows(records)), *save_tables(tables, folder)]


def means(record: dict[str, Any]) -> list[float | None]:
    """Of each seed over all its evaluations: the sooner it learns, the higher."""
    return [float(values.mean()) if len(values) else None for _, values in evaluations(record)]


def trial_rows(records: Records) -> list[Row]:
    """A row for each variant: what it came to, and at what cost."""
    rows = []
    for record in records:
        found = interquartile(record["final"])
        rows.append(
            {
                "task": record["task"],
                "agent": record["agent"],
                "variant": record["label"],
                "episodes": record["episodes"],
                "seeds": found.seeds,
                "interquartile_mean": found.mean,
                "lowest": min((each for each in record["final"] if each is not None), default=None),
                "highest": max((each for each in record["final"] if each is not None), default=None),
                "mean_of_evaluations": interquartile(means(record)).mean,
                "lost_share": _mean(record, "lost_share"),
                "kl_of_bound": _mean(record, "kl_of_bound"),
                "wall_s": record["wall_s"],
                "lanes": record["lanes"],
            }
        )
    return rows


def _mean(record: Mapping[str, Any], key: str) -> float | None:
    known = [entry[key] for entry in record["ledger"] if entry[key] is not None]
    return sum(known) / len(known) if known else None


def _cell(task: str, settings: Settings, budget: Budget, label: str) -> TrainingCell:
    return TrainingCell(task, settings, budget.episodes, budget.seeds, FIRST_SEED, label)
