"""The paper's pictures of the posterior: mean and spread of Q*_f(s, a) over models f drawn from it, over training."""

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import Array
from matplotlib.figure import Figure as Drawing

from cdpo.experiments.chain import chain_cells
from cdpo.experiments.figure import Records, Scale
from cdpo.report.figures import save_figure
from cdpo.report.style import agent_label, looks
from cdpo.tabular.agents import CDPO, PSRL
from cdpo.tabular.planning import Known, Model, policy_iteration, uniform_policy
from cdpo.tabular.posterior import Posterior
from cdpo.tabular.simulation import Carry
from cdpo.tabular.study import Cell, Oracles

DRAWS = 200
_PARTS = 64  # of a run; snapshots are taken after these many of them
_TIMES = (0, 1, 2, 4, 8, 16, 32, 64)


@partial(jax.jit, static_argnames="draws")
def optimal_values(posterior: Posterior, known: Known, key: Array, draws: int = DRAWS) -> tuple[Array, Array]:
    """Mean and standard deviation of Q* [S, A] over models drawn from the posterior."""
    models = posterior.sample_set(known, key, draws)
    start = uniform_policy(known.allowed)
    q = jax.vmap(lambda model: policy_iteration(model, known, start)[1])(models)
    return q.mean(axis=0), q.std(axis=0)


@dataclass(frozen=True)
class PosteriorCell(Cell):
    """A cell that looks at the posterior eight times during the run."""

    def measure(self, oracles: Oracles, progress: Callable[[int], None] | None) -> dict[str, Any]:
        """Snapshots [time][state][action], averaged over seeds."""
        blocks = math.ceil(self.steps / self.environment.period)
        segment = max(1, blocks // _PARTS)
        times = {min(part * segment * self.environment.period, self.steps) for part in _TIMES} | {self.steps}
        taken: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {time: [] for time in times}
        lock = threading.Lock()

        def watch(steps: int, lanes: np.ndarray, carry: Carry) -> None:
            if steps not in times:
                return
            look = jax.vmap(optimal_values, in_axes=(0, 0, None))
            mean, deviation = look(carry.memory.posterior, carry.memory.known, jax.random.key(1))
            mine = (lanes >= self.seed) & (lanes < self.seed + self.seeds)
            with lock:
                taken[steps].append((np.asarray(mean)[mine], np.asarray(deviation)[mine]))

        self.simulate(segment=segment, watch=watch, progress=progress)
        mdp = self.environment.make(jax.random.key(0))
        truth = policy_iteration(Model.true(mdp), Known.of(mdp), uniform_policy(mdp.allowed))[1]
        snapshots = []
        for time in sorted(taken):
            mean = np.concatenate([m for m, _ in taken[time]])
            deviation = np.concatenate([d for _, d in taken[time]])
            snapshots.append({"steps": time, "mean": mean.mean(axis=0).tolist(), "sd": deviation.mean(axis=0).tolist()})
        return {**self.identity, "draws": DRAWS, "snapshots": snapshots, "true": np.asarray(truth).tolist()}


def posterior_cells(scale: Scale, sizes: tuple[int, ...]) -> list[Cell]:
    """CDPO and PSRL with snapshots."""
    cells = chain_cells(scale, sizes, (CDPO(), PSRL()))
    return [PosteriorCell(**{name: getattr(cell, name) for name in cell.__dataclass_fields__}) for cell in cells]


def furthest_cells(scale: Scale) -> list[Cell]:
    """At 8 and 15."""
    return posterior_cells(scale, (8, 15))


def evolution_cells(scale: Scale) -> list[Cell]:
    """At 8."""
    return posterior_cells(scale, (8,))


def draw_furthest(records: Records, folder: Path) -> list[Path]:
    """Both actions of the last state, CDPO and PSRL side by side."""
    sizes = sorted({r["size"] for r in records})
    figure = Drawing(figsize=(4.2 * len(sizes), 5.4), layout="constrained")
    grid = figure.subplots(2, len(sizes), squeeze=False, sharex="col")
    for column, size in enumerate(sizes):
        for action, name in enumerate(("left", "right")):
            axes = grid[action][column]
            for r in records:
                if r["size"] == size:
                    _band(axes, r, size - 1, action)
            axes.set_title(f"N = {size}, state {size}, {name}{' (optimal)' if action else ''}", fontsize=10)
            axes.set_ylabel("Q*")
        grid[1][column].set_xlabel("steps")
    _legend(figure, grid[0][0])
    return save_figure(figure, folder / "posterior-furthest-state", _rows(records, last_only=True))


def draw_evolution(records: Records, folder: Path) -> list[Path]:
    """All states and both actions, one figure for each agent."""
    paths = []
    for r in records:
        states = r["size"]
        figure = Drawing(figsize=(1.7 * states, 4.2), layout="constrained")
        grid = figure.subplots(2, states, squeeze=False, sharex=True, sharey=True)
        for state in range(states):
            for action, name in enumerate(("left", "right")):
                axes = grid[action][state]
                _band(axes, r, state, action)
                axes.set_title(f"s = {state + 1}, {name}", fontsize=9)
                axes.tick_params(labelsize=7)
            grid[1][state].set_xlabel("steps", fontsize=8)
        grid[0][0].set_ylabel("Q*")
        grid[1][0].set_ylabel("Q*")
        _legend(figure, grid[0][0])
        paths += save_figure(figure, folder / f"posterior-{r['agent']}", _rows([r]))
    return paths


def _band(axes: Any, record: dict[str, Any], state: int, action: int) -> None:
    steps = [snapshot["steps"] for snapshot in record["snapshots"]]
    mean = np.array([snapshot["mean"][state][action] for snapshot in record["snapshots"]])
    deviation = np.array([snapshot["sd"][state][action] for snapshot in record["snapshots"]])
    colour = looks({"": record["agent"]})[""].colour
    # Steps grow by doubling; a symmetric log keeps the start and the doublings apart.
    axes.set_xscale("symlog", linthresh=max(1, steps[1]), base=2)
    axes.fill_between(steps, mean - deviation, mean + deviation, color=colour, alpha=0.18, linewidth=0)
    axes.plot(steps, mean, "o-", markersize=3, color=colour, label=agent_label(record["agent"]))
    axes.set_xticks(
        [steps[0], steps[len(steps) // 2], steps[-1]], [str(steps[0]), str(steps[len(steps) // 2]), str(steps[-1])]
    )
    axes.minorticks_off()
    label = "true Q*" if "true Q*" not in axes.get_legend_handles_labels()[1] else None
    axes.axhline(record["true"][state][action], color="#333333", linestyle="--", linewidth=1, label=label)


def _legend(figure: Any, axes: Any) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)


def _rows(records: Records, last_only: bool = False) -> list[dict[str, Any]]:
    return [
        {
            "size": r["size"],
            "agent": r["agent"],
            "steps": snapshot["steps"],
            "state": state + 1,
            "action": name,
            "posterior_mean": snapshot["mean"][state][action],
            "posterior_sd": snapshot["sd"][state][action],
            "true": r["true"][state][action],
        }
        for r in records
        for snapshot in r["snapshots"]
        for state in (range(r["size"] - 1, r["size"]) if last_only else range(r["size"]))
        for action, name in enumerate(("left", "right"))
    ]
