"""Figure 4 of the paper: CDPO beside other agents, with a model and without, the latter also for longer."""

from pathlib import Path

from cdpo.experiments.comparison import by_task, draw_comparison, draw_returns, evaluation_rows, seed_rows
from cdpo.experiments.exploration import Budget, at_scale
from cdpo.experiments.figure import Records, Scale
from cdpo.experiments.training import TrainingCell, evaluated_every, evaluation_interval, until
from cdpo.report.figures import save_tables
from cdpo.report.style import agent_label
from cdpo.report.tables import Record
from cdpo.tasks import find_task
from cdpo.training.presets import preset

MODEL_BASED = ("cdpo", "mbpo", "slbo", "me-trpo", "dpi")
MODEL_FREE = ("sac", "ppo", "mpo")
LONG = 300_000  # environment steps, in episodes as long as they can be, that agents without a model have by themselves
_EVALUATIONS = 40  # of such a run
_FEW = ("cdpo", "mbpo", "sac")  # for a look at how they learn

BUDGETS: dict[Scale, dict[str, Budget]] = {
    "smoke": {"inverted-pendulum": Budget(2, 2)},
    "quick": {"inverted-pendulum": Budget(8, 2)},
    "paper": {
        "inverted-pendulum": Budget(30, 6),  # the balance, as the paper's table has it
        "cartpole-swingup": Budget(40, 6),  # what its captions say
        "pusher": Budget(100, 6),
        "half-cheetah": Budget(100, 6),
    },
}


def cells(scale: Scale) -> list[TrainingCell]:
    """Every agent on every task, few at quick; at the paper's scale those without a model once more, for longer."""
    found = []
    for task, (episodes, seeds) in BUDGETS[scale].items():
        agents = _FEW if scale == "quick" else (*MODEL_BASED, *MODEL_FREE)
        settings = {agent: preset("default", find_task(task), agent) for agent in agents}
        for own in settings.values():
            found.append(TrainingCell(task, at_scale(own, scale), episodes, seeds))
        for agent in MODEL_FREE if scale == "paper" else ():
            longer = LONG // find_task(task).horizon
            own = settings[agent].changed(loop={"evaluate": max(1, longer // _EVALUATIONS)})
            found.append(TrainingCell(task, own, longer, seeds, label=f"{agent_label(agent)}, longer"))
    return found


def _as_far(record: Record, longer: Records) -> Record:
    """What stands for a record at equal steps: where all its seeds ended before, the longer run as far as that.

    Who has not learned to balance lives for a few steps an episode, and as many episodes as others need would be over
    before its first update.
    """
    budget = record["horizon"] * (record["episodes"] + 1)
    short = all(curve["env_steps"][-1] < budget for curve in record["curves"] if curve["env_steps"])
    for other in longer if short else ():
        if all(other[key] == record[key] for key in ("task", "agent", "seeds")):
            cut = until(other, budget)
            if None not in cut["final"]:
                return {**cut, "label": "", "episodes": record["episodes"]}
    return record


def _as_often(records: Records) -> Records:
    """With the evaluations of whoever was evaluated most seldom: returns are means of the last few."""
    often = [evaluation_interval(record) for record in records]
    seldom = max(often)
    return [
        record if each == seldom else evaluated_every(record, seldom)
        for record, each in zip(records, often, strict=True)
    ]


def draw(records: Records, folder: Path) -> list[Path]:
    """The comparison at equal steps; and the longer runs by themselves."""
    equal, longer = ([record for record in records if bool(record["label"]) == long] for long in (False, True))
    equal = [record for group in by_task(equal).values() for record in _as_often(group)]
    equal = [_as_far(record, longer) for record in equal]
    paths = draw_comparison(equal, folder) if equal else []
    if longer:
        paths += draw_returns(longer, folder / "long-returns")
        tables = {"long-returns-by-seed": seed_rows(longer), "long-evaluations": evaluation_rows(longer)}
        paths += save_tables(tables, folder)
    return paths
