"""The commands. Each is a frozen dataclass whose fields are its options, and whose `run` does the work."""

import contextlib
import dataclasses
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import tyro

from cdpo.errors import UserError, unknown
from cdpo.experiments import FIGURES, reproduce
from cdpo.progress import Progress
from cdpo.report import write_figures, write_report
from cdpo.report.tables import estimate
from cdpo.runs import RunFolder, check_free, hardware, versions
from cdpo.tabular.agents import BQL, CDPO, MM, UBE, UCRL, Agent, QLearning
from cdpo.tabular.environments import Chain, DeepSea, PriorMDP, Sized, WideNarrow
from cdpo.tabular.posterior import Prior
from cdpo.tabular.study import Cell, complete, default_steps, find_agents, find_environment

_MOST = 10**9  # counts and their sums fit 32 bits
_LARGEST = 1e30  # settings become 32-bit floats


class Command(Protocol):
    """What the dispatcher needs."""

    def run(self, words: Sequence[str]) -> None:
        """Do it; `words` is the command line as it was typed."""


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
        for name in ("seeds", "steps", "period"):
            number = getattr(self, name)
            if number is not None and not 1 <= number <= _MOST:
                raise UserError(f"--{name} must be between 1 and {_MOST}, not {number}")
        if not 0 <= self.seed <= _MOST:
            raise UserError(f"--seed must be between 0 and {_MOST}, not {self.seed}")
        for part, settings in _settings(self).items():
            for name, value in settings.items() if isinstance(settings, dict) else ():
                if isinstance(value, float) and not abs(value) < _LARGEST:
                    raise UserError(f"--{part}.{name} must be a finite number, not {value:g}".replace("_", "-"))
        parts = [getattr(self, field.name) for field in dataclasses.fields(self)]
        agents = find_agents(self.agents, [part for part in parts if isinstance(part, Agent)])
        families = [part for part in parts if isinstance(part, Sized)]
        cells = []
        for wanted in self.size or (None,):
            environment, size = find_environment(self.env, wanted, families)
            steps = default_steps(environment) if self.steps is None else self.steps
            for agent in agents:
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

    def run(self, words: Sequence[str]) -> None:
        """Run every cell into a new folder."""
        cells = self.cells()
        out = Path("runs") / time.strftime("tabular-%Y%m%d-%H%M%S") if self.out is None else self.out
        check_free(out)
        config = {
            "kind": "tabular",
            "command": shlex.join(["cdpo", *words]),
            "env": self.env,
            "sizes": [cell.size for cell in cells if cell.agent == cells[0].agent],
            "agents": list(self.agents),
            "seeds": self.seeds,
            "seed": self.seed,
            "steps": self.steps,
            "settings": _settings(self),
            "versions": versions(),
            "hardware": hardware(),
        }
        finish_tabular(RunFolder.create(out, config), cells)


def finish_tabular(folder: RunFolder, cells: list[Cell]) -> None:
    """Run the cells that the folder lacks, then write its summary and show the results."""
    began = time.monotonic()
    with Progress() as progress, explained(f"cdpo resume {shlex.quote(str(folder.path))}"):
        results = complete(folder, cells, progress.task)
    summary = {"results": results, "versions": versions(), "hardware": hardware()}
    folder.write_summary({**summary, "wall_s": round(time.monotonic() - began, 2)})
    write_figures(folder)
    print(_table(results))
    print(f"run folder: {folder.path}   page: cdpo report {shlex.quote(str(folder.path))}")


@contextlib.contextmanager
def explained(go_on: str) -> Iterator[None]:
    """Say on Ctrl-C that nothing finished is lost, and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"interrupted; what has finished is kept, go on with: {go_on}", file=sys.stderr)
        raise


def _settings(command: Tabular) -> dict[str, Any]:
    settings = dataclasses.asdict(command)
    for name in ("env", "size", "agents", "seeds", "seed", "steps", "out"):
        settings.pop(name)
    return settings


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
                f"{np.mean(result['expected_regret']):.1f}",
                f"{np.mean(result['value_regret']):.1f}",
                f"{result['stuck_fraction']:.0%}",
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


@dataclasses.dataclass(frozen=True)
class Resume:
    """Go on with a run that was interrupted."""

    folder: tyro.conf.Positional[Path]
    """The run folder."""

    def run(self, words: Sequence[str]) -> None:
        """Run what is missing."""
        folder = RunFolder.open(self.folder)
        config = folder.config
        if config.get("kind") != "tabular":
            raise UserError(f"{str(self.folder)!r} is a run of kind {config.get('kind')!r}, which cannot be resumed")
        if (folder.path / "summary.json").exists():
            raise UserError(f"{str(self.folder)!r} has finished; there is nothing to go on with")
        from cdpo.cli import parse

        try:
            typed = shlex.split(str(config.get("command")))[1:]
        except ValueError:
            typed = []
        command = parse(typed) if typed[:1] == ["tabular"] else None
        if not isinstance(command, Tabular):
            raise UserError(f"{str(self.folder)!r} holds no tabular command in its config.json; run it again elsewhere")
        finish_tabular(folder, command.cells())


@dataclasses.dataclass(frozen=True)
class Report:
    """Make one self-contained HTML page of one or several run folders."""

    folders: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders."""
    out: Path | None = None
    """The page; report.html in the folder, or cdpo-report.html here for several, if not given."""

    def run(self, words: Sequence[str]) -> None:
        """Write the page and say where it is."""
        if not self.folders:
            raise UserError("no run folder is named; try: cdpo report runs/NAME")
        print(write_report(list(self.folders), self.out))


@dataclasses.dataclass(frozen=True)
class Reproduce:
    """Make a figure of the paper; without a name, list them."""

    figure: tyro.conf.Positional[str] = ""
    """Name of the figure."""
    scale: Literal["smoke", "quick", "paper"] = "quick"
    """smoke takes seconds, quick a minute or two, paper as long as it takes."""
    out: Path | None = None
    """Folder for figures and data; runs/FIGURE-SCALE if not given. What is finished there is not run again."""

    def run(self, words: Sequence[str]) -> None:
        """List or make figures."""
        if not self.figure:
            width = max(len(name) for name in FIGURES)
            for name, figure in FIGURES.items():
                print(f"{name.ljust(width)}  {figure.paper}: {figure.shows}")
            return
        if self.figure not in FIGURES:
            raise unknown("figure", self.figure, FIGURES)
        out = Path("runs") / f"{self.figure}-{self.scale}" if self.out is None else self.out
        command = shlex.join(["cdpo", *words])
        with Progress() as progress, explained(command):
            paths = reproduce(self.figure, self.scale, out, command, progress.task)
        for path in paths:
            print(path)


COMMANDS: dict[str, type[Any]] = {"tabular": Tabular, "resume": Resume, "report": Report, "reproduce": Reproduce}
