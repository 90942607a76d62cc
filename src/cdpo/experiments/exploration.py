"""Figure 3 of the paper: greedy exploitation, posterior sampling, optimism and CDPO, on equal terms."""

from typing import Any, NamedTuple

from cdpo.agents import CDPO, Exploration
from cdpo.experiments.figure import Scale
from cdpo.experiments.training import TrainingCell
from cdpo.tasks import find_task
from cdpo.training.presets import preset
from cdpo.training.settings import Settings

RULES = ("cdpo", "psrl", "hucrl", "greedy")


class Budget(NamedTuple):
    """What is spent on a task."""

    episodes: int
    seeds: int


BUDGETS: dict[Scale, dict[str, Budget]] = {
    "smoke": {"inverted-pendulum": Budget(3, 2)},
    "quick": {"inverted-pendulum": Budget(6, 4)},  # about ten minutes on two cores, two seeds at a time
    "paper": {
        "inverted-pendulum": Budget(30, 6),  # the balance, as the paper's table has it
        "cartpole-swingup": Budget(40, 6),  # what its captions say
        "pusher": Budget(100, 6),
        "half-cheetah": Budget(100, 6),
    },
}

_SMOKE: dict[str, dict[str, Any]] = {
    "loop": {"random": 1, "stretch": 0},
    "ensemble": {"heads": 2, "hidden": (8,), "steps": 4, "check": 2, "batch": 8},
    "dyna": {"rounds": 1, "updates": 2, "particles": 2, "horizon": 2, "batch": 4},
    "bptt": {"updates": 2, "particles": 2, "horizon": 2, "hidden": (8,)},
    "mpc": {"rounds": 1, "updates": 2, "plans": 2, "particles": 2, "horizon": 2, "batch": 4, "hidden": (8,)},
    **{learner: {"hidden": (8,)} for learner in ("sac", "mpo", "ppo", "trpo")},
}


def cells(scale: Scale) -> list[TrainingCell]:
    """Every rule on every task."""
    return [
        TrainingCell(task, rule_settings(task, rule, scale), budget.episodes, budget.seeds)
        for task, budget in BUDGETS[scale].items()
        for rule in RULES
    ]


def rule_settings(task: str, rule: str, scale: Scale) -> Settings:
    """The default preset, on equal terms."""
    return on_equal_terms(at_scale(preset("default", find_task(task), rule), scale))


def at_scale(settings: Settings, scale: Scale) -> Settings:
    """The same agent; that of smoke learns nothing, and compiles in seconds."""
    if scale != "smoke":
        return settings
    rule = {"models": min(2, settings.rule.models)} if isinstance(settings.rule, Exploration) else {}
    return settings.changed(rule=rule, **_SMOKE)


def on_equal_terms(settings: Settings) -> Settings:
    """As many gradient steps in an iteration as CDPO makes: a rule with one update gets the rounds of its two."""
    if isinstance(settings.rule, CDPO) and settings.rule.update == "dual":
        return settings
    if settings.solver == "bptt":
        return settings.changed(bptt={"updates": 2 * settings.bptt.updates})
    if settings.solver == "mpc":
        return settings.changed(mpc={"rounds": 2 * settings.mpc.rounds})
    return settings.changed(dyna={"rounds": 2 * settings.dyna.rounds})
