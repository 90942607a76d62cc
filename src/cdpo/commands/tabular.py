"""`cdpo tabular`."""

import dataclasses
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cdpo.cells import complete
from cdpo.commands.base import STOPPED, aligned, explained, say
from cdpo.errors import UserError, shown, unknown
from cdpo.progress import Progress
from cdpo.report import write_figures
from cdpo.report.tables import cell_label, line
from cdpo.runs import RunFolder, check_free, hardware, versions
from cdpo.statistics import estimate
from cdpo.tabular.agents import BQL, CDPO, MM, UBE, UCRL, Agent, QLearning
from cdpo.tabular.environments import Chain, DeepSea, Environment, PriorMDP, Sized, WideNarrow
from cdpo.tabular.posterior import Prior
from cdpo.tabular.simulation import check_counts
from cdpo.tabular.study import Cell, default_steps, find_agents, find_environment, shape_of
from cdpo.terminal import printable
from cdpo.told import LARGEST, MOST, changed
from cdpo.training.run import set_aside

_MOST_DRAWN = 2**27  # entries of the tables of all models that an agent draws at once, for one seed
_NAMED = ("env", "agents", "seeds", "seed", "steps")  # settings that stand for themselves in config.json


@dataclasses.dataclass(frozen=True)
class Tabular:
    """Run agents in a finite MDP, all seeds at once, and write a run folder."""

    env: str = "chain"
    """chain, wide-narrow, prior-mdp, deep-sea or bandit; a Gymnasium id with a transition table; or a file.npz."""
    size: tuple[int, ...] = ()
    """Sizes to run; the environment's usual one if none is given."""
    agents: tuple[str, ...] = ("cdpo", "psrl")
    """Any of cdpo, psrl, ucrl, greedy, ube, mm, bql, q-learning, oracle, random."""
    seeds: int = 10
    """How many seeds."""
    seed: int = 0
    """The first seed."""
    steps: int | None = None
    """Steps for each seed; 1250 for each state if not given."""
    period: int | None = None
    """Steps between two plans; the environment's own if not given."""
    ledger: bool = False
    """Keep the improvement ledger: both sides of the improvement theorem at every update."""
    out: Path | None = None
    """Folder of the run, which must not exist yet; runs/tabular-TIME if not given."""
    prior: Prior = Prior()
    chain: Chain = Chain()
    wide_narrow: WideNarrow = WideNarrow()
    prior_mdp: PriorMDP = PriorMDP()
    deep_sea: DeepSea = DeepSea()
    cdpo: CDPO = CDPO()
    ucrl: UCRL = UCRL()
    ube: UBE = UBE()
    mm: MM = MM()
    bql: BQL = BQL()
    q_learning: QLearning = QLearning()

    def cells(self) -> list[Cell]:
        """The simulations that this asks for; a UserError where it asks for something that does not exist."""
        for part, settings in _settings(self).items():
            for name, value in settings.items() if isinstance(settings, dict) else ():
                _check_number(f"--{part}.{name}".replace("_", "-"), value)
        for field in dataclasses.fields(self):
            part = getattr(self, field.name)
            whose = "--agents" if isinstance(part, Agent) else "--env"
            named = self.agents if isinstance(part, Agent) else (self.env,)
            told = printable(" ".join(named))
            if isinstance(part, Agent | Sized) and part.name not in named and part != field.default:
                raise UserError(f"--{part.name} says nothing to {whose} {told}; leave its options out")
        parts = [getattr(self, field.name) for field in dataclasses.fields(self)]
        agents = find_agents(self.agents, [part for part in parts if isinstance(part, Agent)])
        families = [part for part in parts if isinstance(part, Sized)]
        cells = []
        for wanted in self.size or (None,):
            environment, size = find_environment(self.env, wanted, families)
            steps = default_steps(environment) if self.steps is None else self.steps
            period = environment.period if self.period is None else self.period
            check_counts(self.seeds, self.seed, steps, period, prefix="--")
            for agent in agents:
                _check_models(agent, environment)
                cells.append(
                    Cell(
                        env=self.env,
                        size=size,
                        environment=environment,
                        agent=agent,
                        steps=steps,
                        seeds=self.seeds,
                        seed=self.seed,
                        period=self.period,
                        prior=self.prior,
                        ledger=self.ledger,
                    )
                )
        if len({cell.size for cell in cells}) * len(agents) < len(cells):
            raise UserError("a size is named twice")
        return cells

    def run(self, words: Sequence[str]) -> int | None:
        """Run every cell into a new folder."""
        cells = self.cells()
        out = Path("runs") / time.strftime("tabular-%Y%m%d-%H%M%S") if self.out is None else self.out
        check_free(out)
        told = {"kind": "tabular", "command": shlex.join(["cdpo", *words]), **self.to_json(cells)}
        return finish_tabular(RunFolder.create(out, {**told, "versions": versions(), "hardware": hardware()}), cells)

    def to_json(self, cells: list[Cell]) -> dict[str, Any]:
        """All that says what the cells are, as plain values."""
        told = {name: getattr(self, name) for name in _NAMED}
        sizes = [cell.size for cell in cells if cell.agent == cells[0].agent]
        return {**told, "sizes": sizes, "settings": _settings(self)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Tabular":
        """The command of what `to_json` wrote, in this version or an earlier one; a UserError for anything else."""
        try:
            sizes = [size for size in values["sizes"] if size is not None]  # None: it has no sizes
            told = {name: values[name] for name in _NAMED}
            for name in values["settings"]:
                if name in (*_NAMED, "size", "out"):  # which stand elsewhere
                    raise unknown("part of the settings", name, _settings(cls()))
            return changed("tabular", cls(), {**told, "size": sizes, **values["settings"]})
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise UserError("the settings of the run cannot be read; run it again elsewhere") from error


def finish_tabular(folder: RunFolder, cells: list[Cell], *, restart: bool = False) -> int | None:
    """Run the cells that the folder lacks, or all of them anew, then write its summary and show the results.

    The exit code, if a seed was stopped.
    """
    began = time.monotonic()
    go_on = explained(f"cdpo resume {shlex.quote(str(folder.path))}")
    with go_on, folder.writing(), Progress() as progress:
        if restart:
            say(f"set aside in {str(set_aside(folder))!r}")
        results = complete(folder, cells, progress.task)
        summary = {"results": results, "versions": versions(), "hardware": hardware()}
        folder.write_summary({**summary, "wall_s": round(time.monotonic() - began, 2)})
        write_figures(folder)
    print(_table(results))
    print(printable(f"run folder: {folder.path}   page: cdpo report {shlex.quote(str(folder.path))}"))
    return tell_stopped(results)


def tell_stopped(records: Iterable[dict[str, Any]]) -> int | None:
    """Say which seeds of these records were stopped, and by what; the exit code, if any was."""
    stopped = [(record, *each) for record in records for each in record.get("stopped", {}).items()]
    for record, seed, reason in stopped:
        where = record["task"] if "task" in record else cell_label((record["env"], record["size"]))
        say(f"cdpo: seed {seed} of {where}, {line(record)} was stopped by {reason}")
    return STOPPED if stopped else None


def _check_number(name: str, value: Any) -> None:
    if isinstance(value, float) and not abs(value) < LARGEST:
        raise UserError(f"{name} must be a finite number, not {value:g}")
    if isinstance(value, int) and abs(value) > MOST:
        raise UserError(f"{name} must be at most {MOST}, not {shown(value)}")


def _check_models(agent: Agent, environment: Environment) -> None:
    """Reject more models than fit anywhere, before they are drawn."""
    if not isinstance(agent, CDPO):
        return
    states, actions = shape_of(environment)
    if agent.models * states * actions * states > _MOST_DRAWN:
        raise UserError(
            f"--cdpo.models must be at most {max(1, _MOST_DRAWN // (states * actions * states))} with {states} states "
            f"and {actions} actions, not {agent.models}"
        )


def _settings(command: Tabular) -> dict[str, Any]:
    return {name: each for name, each in dataclasses.asdict(command).items() if name not in (*_NAMED, "size", "out")}


def _table(results: list[dict[str, Any]]) -> str:
    rows = [("env", "size", "agent", "normalised regret", "95% interval", "expected", "value", "stuck")]
    for result in results:
        normalised = estimate(result["normalised_regret"])
        rows.append(
            (
                result["env"],
                "-" if result["size"] is None else str(result["size"]),
                result["agent"],
                "-" if normalised.mean is None else f"{normalised.mean:.3f}",
                "-" if normalised.low is None else f"[{normalised.low:.3f}, {normalised.high:.3f}]",
                _mean(result["expected_regret"]),
                _mean(result["value_regret"]),
                "-" if result["stuck_fraction"] is None else f"{result['stuck_fraction']:.0%}",
            )
        )
    return aligned(rows)


def _mean(values: list[float | None]) -> str:
    """Over the seeds that have a number."""
    known = [value for value in values if value is not None]
    return f"{np.mean(known):.1f}" if known else "-"
