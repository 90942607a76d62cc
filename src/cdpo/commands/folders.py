"""Commands on what runs leave behind, and the paper's figures: `cdpo resume | report | reproduce`."""

import contextlib
import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import tyro

from cdpo.cells import run_here
from cdpo.commands.base import explained
from cdpo.commands.tabular import Tabular, finish_tabular, tell_stopped
from cdpo.commands.training import resume_training
from cdpo.errors import UserError, unknown
from cdpo.experiments import FIGURES, reproduce
from cdpo.experiments.scale_out import cluster
from cdpo.progress import Progress
from cdpo.report import write_report
from cdpo.runs import RunFolder
from cdpo.terminal import printable


@dataclasses.dataclass(frozen=True)
class Resume:
    """Go on with a run that was interrupted."""

    folder: tyro.conf.Positional[Path]
    """The run folder."""
    episodes: int = 0
    """More episodes than the run was told; training only."""
    task: str | None = None
    """The run's task again: needed where its name has a module to import, which is not done for a folder's sake."""
    env_timeout: float | None = None
    """Seconds for an answer of the environment, if they are to be others than the run was told."""
    restart: bool = False
    """Begin anew: what was measured and learned is moved into a folder before-restart-N of the run."""

    def run(self, words: Sequence[str]) -> int | None:
        """Run what is missing."""
        folder = RunFolder.open(self.folder)
        config = folder.config
        if config.get("kind") == "train":
            return resume_training(folder, self.episodes, self.task, self.env_timeout, restart=self.restart)
        if config.get("kind") == "reproduction":
            raise UserError(
                f"{str(self.folder)!r} is a reproduction; go on with: {config.get('command', 'cdpo reproduce')}"
            )
        if config.get("kind") != "tabular":
            raise UserError(f"{str(self.folder)!r} is a run of kind {config.get('kind')!r}, which cannot be resumed")
        for option in ("episodes", "task", "env-timeout"):
            if getattr(self, option.replace("-", "_")):
                raise UserError(f"--{option} is for training runs; this one is tabular")
        if folder.finished and not self.restart:
            raise UserError(f"{str(self.folder)!r} has finished; there is nothing to go on with")
        try:
            cells = Tabular.from_json(config).cells()
        except UserError as error:
            raise UserError(f"{str(self.folder)!r} cannot go on: {error}") from error
        return finish_tabular(folder, cells, restart=self.restart)


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
        print(printable(write_report(list(self.folders), self.out)))


@dataclasses.dataclass(frozen=True)
class Reproduce:
    """Make a figure of the paper; without a name, list them."""

    figure: tyro.conf.Positional[str] = ""
    """Name of the figure."""
    scale: Literal["smoke", "quick", "paper"] = "quick"
    """smoke takes seconds, quick a minute or two, paper as long as it takes. A figure of training runs (exploration)
    takes a minute or two at smoke, and about ten at quick, on two cores."""
    out: Path | None = None
    """Folder for figures and data; runs/FIGURE-SCALE if not given. What is finished there is not run again."""
    tasks: tuple[str, ...] = ()
    """Run these tasks only, of a figure of training runs; it shows whatever is finished."""
    agents: tuple[str, ...] = ()
    """Run these agents only."""
    variants: tuple[str, ...] = ()
    """Run these variants only, by their names in the figure."""
    ray: str = ""
    """Address of a Ray cluster over which training runs are spread, or auto; every node must see the folder."""

    def run(self, words: Sequence[str]) -> int | None:
        """List or make figures."""
        for option in ("tasks", "agents", "variants", "ray", "out"):
            if getattr(self, option) and not self.figure:
                raise UserError(f"--{option} needs the name of a figure before it; cdpo reproduce lists them")
        if not self.figure:
            width = max(len(name) for name in FIGURES)
            for name, figure in FIGURES.items():
                print(f"{name.ljust(width)}  {figure.paper}: {figure.shows}")
            return None
        if self.figure not in FIGURES:
            raise unknown("figure", self.figure, FIGURES)
        for option in ("tasks", "agents", "variants"):
            if f"--{option}" in words and not getattr(self, option):
                raise UserError(f"no {option} are named; for all of them leave --{option} out")
        out = Path("runs") / f"{self.figure}-{self.scale}" if self.out is None else self.out
        command = shlex.join(["cdpo", *words])
        where = cluster(self.ray) if self.ray else contextlib.nullcontext(run_here)
        with Progress() as progress, explained(command), where as run:
            part = self.tasks, self.agents, self.variants
            paths, records = reproduce(self.figure, self.scale, out, command, progress.task, *part, run=run)
        for path in paths:
            print(printable(path))
        return tell_stopped(records)
