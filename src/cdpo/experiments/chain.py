"""The paper's regret figures on the chain, and its diagram."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure as Drawing
from matplotlib.patches import FancyArrowPatch

from cdpo.experiments.figure import BUDGETS, Records, Scale
from cdpo.report.figures import normalised_by_size, regret_curves, save_figure
from cdpo.report.tables import normalised_rows, regret_rows
from cdpo.tabular.agents import BQL, CDPO, MM, PSRL, UBE, Agent, QLearning
from cdpo.tabular.environments import Chain
from cdpo.tabular.study import Cell

PAPER_AGENTS: tuple[Agent, ...] = (CDPO(), PSRL(), MM(), UBE(), BQL(), QLearning())


def chain_cells(
    scale: Scale, sizes: tuple[int, ...], agents: tuple[Agent, ...], smoke: tuple[int, ...] = (4,), **options: Any
) -> list[Cell]:
    """Every agent on every chain, at the budget of the scale; at smoke on the chains of `smoke` instead."""
    budget = BUDGETS[scale]
    return [
        Cell("chain", n, Chain(n), agent, steps=budget.steps * n, seeds=budget.seeds, **options)
        for n in (sizes if scale != "smoke" else smoke)
        for agent in agents
    ]


def regret_pair(scale: Scale) -> list[Cell]:
    """CDPO and PSRL at 8 and 15."""
    return chain_cells(scale, (8, 15), (CDPO(), PSRL()))


def regret_all(scale: Scale) -> list[Cell]:
    """Every agent of the paper at 5, 10 and 15."""
    return chain_cells(scale, (5, 10, 15), PAPER_AGENTS)


def regret_sizes(scale: Scale) -> list[Cell]:
    """Every agent of the paper over the chain's length."""
    sizes = (3, 5, 8, 10, 12, 15) if scale == "paper" else (3, 5, 8, 10)
    return chain_cells(scale, sizes, PAPER_AGENTS, smoke=(3, 4))


def draw_curves(records: Records, folder: Path) -> list[Path]:
    """Cumulative regret with bands."""
    return save_figure(regret_curves(records), folder / "cumulative-regret", regret_rows(records))


def draw_sizes(records: Records, folder: Path) -> list[Path]:
    """Normalised regret over the size."""
    return save_figure(normalised_by_size(records), folder / "normalised-regret", normalised_rows(records))


def draw_diagram(records: Records, folder: Path) -> list[Path]:
    """The chain itself, every arrow read off the transition table."""
    size = 6
    mdp = Chain(size).make(jax.random.key(0))
    transition, reward = np.asarray(mdp.transition), np.asarray(mdp.reward_mean)
    figure = Drawing(figsize=(9, 3.2), layout="constrained")
    axes = figure.add_subplot()
    axes.set_axis_off()
    axes.set_xlim(-0.8, size - 0.2)
    axes.set_ylim(-1.75, 1.9)
    rows = []
    colours = {0: "#c1443c", 1: "#2f6db3"}
    for s, a, t in np.argwhere(transition > 0):
        probability = float(transition[s, a, t])
        rows.append(
            {
                "state": s + 1,
                "action": ("left", "right")[a],
                "next_state": t + 1,
                "probability": probability,
                "mean_reward": float(reward[s, a, t]),
            }
        )
        axes.add_patch(_arrow(s, a, t, colours[a], probability))
    for s in range(size):
        axes.plot(s, 0, "o", markersize=26, markerfacecolor="white", markeredgecolor="#333333")
        axes.text(s, 0, f"{s + 1}", ha="center", va="center")
    last = size - 1
    captions = (
        (1.2, colours[1], f"right at {size}: back to 1 with reward {reward[last, 1, 0]:.0f}, probability 1 - 1/N"),
        (
            -1.2,
            colours[1],
            f"right: onwards with probability 1 - 1/N, else (dashed) back; mean reward {reward[0, 1, 1]:.4f}",
        ),
        (-1.55, colours[0], "left: always back; mean reward 0"),
    )
    for height, colour, text in captions:
        axes.text(last / 2, height, text, color=colour, ha="center", fontsize=9)
    return save_figure(figure, folder / "chain", rows)


def _arrow(s: int, a: int, t: int, colour: str, probability: float) -> FancyArrowPatch:
    """An arc from s to t: right above the states, left and slips below, a loop where the state stays."""
    style: dict[str, Any] = {
        "arrowstyle": "-|>",
        "mutation_scale": 11,
        "color": colour,
        "linewidth": 0.6 + 1.2 * probability,
    }
    style["linestyle"] = "--" if probability < 0.5 else "-"
    if s == t:
        # Beside the first state: the slip leaves above and comes back at its side, left the same below.
        side = 1 if a else -1
        ends = (s - 0.06, 0.26 * side), (s - 0.2, 0.12 * side)
        return FancyArrowPatch(*ends, connectionstyle=f"arc3,rad={2.2 * side}", **style)
    if abs(s - t) > 1:
        return FancyArrowPatch((s, 0.26), (t, 0.26), connectionstyle="arc3,rad=0.36", **style)
    y = 0.2 if a and t > s else -0.2
    bend = -0.35 if a and t > s else (-0.35 if not a else -0.75)
    return FancyArrowPatch((s, y), (t, y), connectionstyle=f"arc3,rad={bend}", **style)
