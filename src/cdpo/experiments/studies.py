"""Studies beside the paper's figures: which reading of CDPO works, what decides it, and where it is behind.

Each is a set of panels, a panel a list of labelled cells that are compared by one number per seed.
"""

import dataclasses
from pathlib import Path
from typing import Any, Literal

from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import MaxNLocator

from cdpo.experiments.chain import chain_cells
from cdpo.experiments.figure import BUDGETS, Records, Scale
from cdpo.report.figures import dot, save_figure
from cdpo.report.style import looks
from cdpo.tabular.agents import BQL, CDPO, MM, PSRL, UBE, UCRL, Agent, Greedy, QLearning
from cdpo.tabular.environments import Bandit, DeepSea, PriorMDP, Sized, WideNarrow
from cdpo.tabular.posterior import Prior
from cdpo.tabular.study import Cell

MANY = "expected value of 100 models"
READINGS: dict[str, Agent] = {
    "PSRL": PSRL(),
    "CDPO": CDPO(),
    "objective weighted by occupancy": CDPO(constraint="occupancy-weighted"),
    "occupancy from the current state": CDPO(constraint="occupancy-current"),
    "TV <= .2 at every state": CDPO(constraint="pointwise"),
    "TV <= .2 around pi_{t-1}": CDPO(constraint="previous"),
    "no constraint": CDPO(constraint="none"),
    "referential only": CDPO(update="referential"),
    "conservative only": CDPO(update="conservative"),
    "reference: least squares": CDPO(reference="least-squares"),
    "reference: a sample": CDPO(reference="sample"),
    "expected value": CDPO(value="expected"),
    "expected value, no constraint": CDPO(value="expected", constraint="none"),
    MANY: CDPO(value="expected", models=100),
    "expected value, judged": CDPO(value="expected", judges=100),
    "judged": CDPO(judges=100),
    "0.9-quantile": CDPO(aggregation="quantile"),
    "0.9-quantile, no constraint": CDPO(aggregation="quantile", constraint="none"),
}
_FEW = ("PSRL", "CDPO", "no constraint", "expected value", "0.9-quantile", "0.9-quantile, no constraint")
MATCHED = Prior(strength=1.0, shape=4.0, rate=4.0)  # what prior-mdp draws its rewards from


def readings(scale: Scale) -> list[Cell]:
    """Every reading and ablation of CDPO on the chain."""
    return [
        dataclasses.replace(cell, variant=label)
        for label, agent in READINGS.items()
        for cell in chain_cells(scale, (5, 8, 10, 15) if scale == "paper" else (5, 8), (agent,))
    ]


def sampled_models(scale: Scale) -> list[Cell]:
    """The number of sampled models K, with and without the constraint."""
    constraints: tuple[Literal["occupancy", "none"], ...] = ("occupancy", "none")
    return [
        dataclasses.replace(cell, variant=f"K = {count}, {constraint}")
        for constraint in constraints
        for count in (1, 3, 10, 20, 50)
        for cell in chain_cells(scale, (10,), (CDPO(models=count, constraint=constraint),))
    ]


def priors(scale: Scale) -> list[Cell]:
    """The prior mean of rewards, equal for all agents of a panel."""
    return [
        dataclasses.replace(cell, variant=f"{cell.agent.name}, mu0 = {mean:g}")
        for mean in (0.0, 0.02, 0.1)
        for cell in chain_cells(scale, (10,), (CDPO(), PSRL(), Greedy()), prior=Prior(mean=mean))
    ]


def elsewhere(scale: Scale) -> list[Cell]:
    """Away from the chain: where CDPO is behind as well as where it is ahead."""
    # Seeds and steps; deep-sea's 26 states make it the dearest. Most of a small scale's time is compilation.
    worlds: dict[Sized, tuple[int, int]] = {
        Bandit(4): (64, 1000),
        PriorMDP(4): (64, 4000),
        WideNarrow(3): (64, 4000),
        DeepSea(5): (16, 3000),
    }
    if scale == "quick":
        worlds = {Bandit(4): (16, 500), PriorMDP(4): (16, 2000)}
    if scale == "smoke":
        worlds = {Bandit(2): (2, 40), PriorMDP(2): (2, 40)}
    agents: dict[str, Agent] = {
        **{label: agent for label, agent in READINGS.items() if scale == "paper" or label in _FEW},
        "greedy": Greedy(),
        "UBE": UBE(),
        "MM": MM(),
        "BQL": BQL(),
        "Q-learning": QLearning(),
    }
    return [
        Cell(world.name, world.size, world, agent, steps=steps, seeds=seeds, variant=label)
        for world, (seeds, steps) in worlds.items()
        for label, agent in agents.items()
        if not (isinstance(world, DeepSea) and label == MANY)  # it alone would take longer than all the others
    ]


def bayes_regret(scale: Scale) -> list[Cell]:
    """MDPs drawn from the agents' own prior: the paper's theorem compares CDPO with PSRL there."""
    budget = {"smoke": (4, 100), "quick": (32, 1000), "paper": (256, 4000)}[scale]
    agents: dict[str, Agent] = {
        "PSRL": PSRL(),
        "CDPO": CDPO(),
        "CDPO, no constraint": CDPO(constraint="none"),
        "CDPO, expected value": CDPO(value="expected"),
        "CDPO, 0.9-quantile": CDPO(aggregation="quantile", constraint="none"),
    }
    return [
        Cell("prior-mdp", n, PriorMDP(n), agent, steps=budget[1], seeds=budget[0], prior=MATCHED, variant=label)
        for n in ((4, 8) if scale != "smoke" else (3,))
        for label, agent in agents.items()
    ]


def ledgers(scale: Scale) -> list[Cell]:
    """How often an update loses value, and how much."""
    agents: dict[str, Agent] = {
        "CDPO": CDPO(),
        "CDPO, no constraint": CDPO(constraint="none"),
        "CDPO, judged": CDPO(judges=100),
        "CDPO, expected value": CDPO(value="expected"),
        "CDPO, expected value of 100 models": CDPO(value="expected", models=100),
        "CDPO, expected value, judged": CDPO(value="expected", judges=100),
        "PSRL": PSRL(),
        "greedy": Greedy(),
        "UCRL": UCRL(),
    }
    if scale != "paper":
        agents = {
            name: agents[name] for name in ("CDPO", "CDPO, no constraint", "CDPO, expected value", "PSRL", "greedy")
        }
    budget = BUDGETS[scale]
    cells = [
        dataclasses.replace(cell, variant=name)
        for name, agent in agents.items()
        for cell in chain_cells(scale, (8, 15), (agent,), ledger=True)
    ]
    return cells + [
        Cell("prior-mdp", 4, PriorMDP(4), agent, budget.steps * 4, seeds=budget.seeds, ledger=True, variant=name)
        for name, agent in agents.items()
    ]


def draw_normalised(records: Records, folder: Path) -> list[Path]:
    """Normalised regret."""
    return _dots(records, folder, "normalised_regret", "normalised regret")


def draw_expected(records: Records, folder: Path) -> list[Path]:
    """Expected regret."""
    return _dots(records, folder, "expected_regret", "expected regret")


def draw_value(records: Records, folder: Path) -> list[Path]:
    """Value regret, with three times PSRL's beside it."""
    return _dots(records, folder, "value_regret", "value regret (Bayes regret)", times_psrl=3)


def draw_ledger(records: Records, folder: Path) -> list[Path]:
    """Share of updates that lost value, and the mean loss."""
    panels = _panels(records)
    figure = Drawing(figsize=(3.6 * len(panels) + 1.4, 4.6), layout="constrained")
    grid = figure.subplots(2, len(panels), squeeze=False, sharey=True)
    rows: list[dict[str, Any]] = []
    for column, (title, group) in enumerate(panels.items()):
        names = [r["label"] for r in group]
        colours = [looks({"": r["agent"]})[""].colour for r in group]
        for row, (key, caption) in enumerate(
            (("lost_share", "share of updates that lost value"), ("mean_loss", "mean loss of those"))
        ):
            axes = grid[row][column]
            axes.barh(names, [r["ledger"][key] for r in group], color=colours, height=0.62)
            axes.invert_yaxis()
            axes.set_xlabel(caption)
            axes.xaxis.set_major_locator(MaxNLocator(4))
        grid[0][column].set_title(title)
        rows += [{"env": r["env"], "size": r["size"], "variant": r["label"], **r["ledger"]} for r in group]
    for axes in grid[:, 0]:
        axes.yaxis.set_inverted(True)
    return save_figure(figure, folder / "ledger", rows)


def _panels(records: Records) -> dict[str, Records]:
    panels: dict[str, Records] = {}
    for r in records:
        panels.setdefault(f"{r['env']}, size {r['size']}", []).append(r)
    return panels


def _dots(records: Records, folder: Path, key: str, caption: str, times_psrl: float = 0) -> list[Path]:
    """A dot and its interval for each variant, a small tick for each seed."""
    panels = _panels(records)
    names = list(dict.fromkeys(r["label"] for r in records))  # a panel may lack some
    figure = Drawing(figsize=(2.9 * len(panels) + 2.4, 0.32 * len(names) + 1.3), layout="constrained")
    grid = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    rows: list[dict[str, Any]] = []
    for axes, (title, group) in zip(grid, panels.items(), strict=True):
        for r in group:
            colour = looks({"": r["agent"]})[""].colour
            found = dot(axes, names.index(r["label"]), r[key], colour)
            rows.append(
                {
                    "env": r["env"],
                    "size": r["size"],
                    "variant": r["label"],
                    "steps": r["steps"],
                    "seeds": found.seeds,
                    f"{key}_mean": found.mean,
                    "low": found.low,
                    "high": found.high,
                    "stuck_fraction": r["stuck_fraction"],
                }
            )
            if times_psrl and r["agent"] == "psrl" and found.mean is not None:
                axes.axvline(times_psrl * found.mean, color=colour, linestyle=":", linewidth=1.2)
                axes.text(times_psrl * found.mean, 0.45, f" {times_psrl:g} x PSRL", color=colour, fontsize=8)
        axes.set_yticks(range(len(names)), names)
        axes.set_title(title)
        axes.set_xlabel(caption)
        axes.xaxis.set_major_locator(MaxNLocator(5))
    grid[0].set_ylim(len(names) - 0.4, -0.6)
    return save_figure(figure, folder / key.replace("_", "-"), rows)
