"""A world without learning: real commands, journals and folders around a trainer whose numbers take no time.

What is attacked is what keeps a run, not what makes its numbers; each number depends on all before it, so that nothing
can be lost, doubled or torn unseen.
"""

import contextlib
import dataclasses
import functools
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

import cdpo
from attacks.base import Ended, run
from cdpo import cli
from cdpo.commands.training import Train
from cdpo.signals import shielded
from cdpo.training.loop import Lived, Pupil, Record
from cdpo.training.schema import names
from cdpo.training.store import flatten

EPISODES, MORE = 3, 2
SEEDS = 2
HORIZON = 20
WORDS = ["train", "pendulum-swingup", "--agent", "sac", "--horizon", str(HORIZON), "--seeds", str(SEEDS),
         "--episodes", str(EPISODES)]  # fmt: skip


class Mind(NamedTuple):
    """What is learned: of each seed a few numbers."""

    policy: dict[str, np.ndarray]
    steps: np.ndarray


class Stub:
    """Looks like a trainer."""

    pause = 0.0  # seconds that an episode takes

    def __init__(self, task: Any, settings: Any, seeds: Sequence[int]) -> None:
        self.task, self.settings, self.episode = task, settings, 0
        self.pupils = [Pupil(seed, None) for seed in seeds]  # type: ignore[arg-type]
        self.row_width = 2 * task.observations + task.actions + 2
        self._mind = Mind({"mean": np.zeros((len(seeds), self.row_width))}, np.zeros(len(seeds), np.int32))
        self._rows = [np.zeros((0, self.row_width), np.float32) for _ in seeds]

    @property
    def going(self) -> bool:
        return True

    def minds(self) -> Mind:
        return self._mind

    def rows(self) -> list[np.ndarray]:
        return self._rows

    def restore(self, episode: int, minds: Mind, rows: Sequence[np.ndarray], pupils: Sequence[Record]) -> None:
        told = ("steps", "iterations", "evaluated", "stopped")
        self.pupils = [
            dataclasses.replace(pupil, **{name: known[name] for name in told})
            for pupil, known in zip(self.pupils, pupils, strict=True)
        ]
        self.episode, self._mind, self._rows = episode, minds, list(rows)

    def advance(self, *, last: bool = False) -> Lived:
        time.sleep(self.pause)
        lived = [self._live(lane) for lane in range(len(self.pupils))]
        self.episode += 1
        return Lived([record for record, _ in lived], [rows for _, rows in lived])

    def _live(self, lane: int) -> tuple[Record, np.ndarray]:
        """An episode of one seed, given all before it."""
        pupil = self.pupils[lane]
        noise = np.random.default_rng([pupil.seed, self.episode]).normal(size=(HORIZON, self.row_width))
        mean = self._mind.policy["mean"].copy()
        mean[lane] = np.cos(mean[lane] + noise.sum(axis=0))
        rows = (noise + mean[lane]).astype(np.float32)
        self._mind = Mind({"mean": mean}, self._mind.steps + np.int32(HORIZON) * (np.arange(len(self.pupils)) == lane))
        self._rows[lane] = np.concatenate([self._rows[lane], rows])
        score, change = float(rows.sum()), None
        if pupil.evaluated is not None:
            change = score - pupil.evaluated
        learned = pupil.iterations + (self.episode > 0)
        pupil = dataclasses.replace(pupil, steps=pupil.steps + HORIZON, iterations=learned, evaluated=score)
        self.pupils[lane] = pupil
        return {
            "seed": pupil.seed,
            "episode": self.episode,
            "env_steps": pupil.steps,
            "return": float(mean[lane].sum()),
            "eval_return": score,
            "eval_change": change,
            "episode_length": HORIZON,
            "terminated": False,
        }, rows


@functools.cache
def _parsed(words: tuple[str, ...]) -> Any:
    return _PARSE(list(words))


_PARSE = cli.parse


def _parse(words: Sequence[str]) -> Any:
    """What the words ask for; parsing takes longer than all that is attacked, and is done once for all folders."""
    if words[0] == "train":
        *rest, option, out = words
        assert option == "--out"
        command: Train = _parsed(tuple(rest))
        return dataclasses.replace(command, out=Path(out))
    if words[0] == "resume" and not words[1].startswith("-"):
        return dataclasses.replace(_parsed(("resume", "folder", *words[2:])), folder=Path(words[1]))
    return _PARSE(words)


@contextlib.contextmanager
def stubbed(patience: float = 0.0, pause: float = 0.0, figures: bool = False) -> Iterator[None]:
    """Here commands and `cdpo.load` have trainers that take no time, and commit after `patience` seconds.

    Figures are drawn only if that is said, as it takes longer than all the rest.
    """

    def together(trainers: Sequence[Stub], *, last: bool = False, keep: Any = None) -> list[Lived]:
        lived = [trainer.advance(last=last) for trainer in trainers]
        with shielded():
            keep(lived)
        return lived

    with contextlib.ExitStack() as stack:
        for name, value in {
            "cdpo.commands.training.Trainer": Stub,
            **({} if figures else {"cdpo.commands.training.write_figures": lambda folder: []}),
            "cdpo.api.Trainer": Stub,
            "cdpo.training.run.advance_together": together,
            **{
                f"cdpo.training.{module}.{name}": dict
                for module in ("run", "config")
                for name in ("versions", "hardware")
            },
            "cdpo.training.run.PATIENCE": patience,
            "cdpo.cli.parse": _parse,
            "cdpo.cli.keep_programs": lambda: None,
        }.items():
            stack.enter_context(mock.patch(name, value))
        stack.enter_context(mock.patch.object(Stub, "pause", pause))
        yield


def cdpo_main(*words: str) -> None:
    """The command line, in this process."""
    with mock.patch.object(sys, "argv", ["cdpo", *words]):
        cli.main()


def command(*words: str, within: Callable[[], Any] = contextlib.nullcontext, **world: Any) -> Ended:
    """A command in a process of its own, in this world, and within a context that attacks it."""
    return run(work(*words, within=within, **world))


def work(*words: str, within: Callable[[], Any] = contextlib.nullcontext, **world: Any) -> Callable[[], None]:
    """The same, for a process that is not waited for."""

    def do() -> None:
        with stubbed(**world), within():
            cdpo_main(*words)

    return do


def train(folder: Path, **options: Any) -> Ended:
    """The run on which everything is tried."""
    return command(*WORDS, "--out", str(folder), **options)


def resume(folder: Path, more: int = 0, **options: Any) -> Ended:
    """Going on with it."""
    return command("resume", str(folder), *(["--episodes", str(more)] if more else []), **options)


def records(folder: Path) -> list[Record]:
    """The lines of `metrics.jsonl`, less times, and sums that depend on them."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [
        {name: each for name, each in json.loads(line).items() if name not in ("wall_s", "crc32")} for line in lines
    ]


def told(folder: Path) -> dict[str, Any]:
    """All that a finished run tells and has learned, without what depends on the time."""
    agent = cdpo.load(folder)
    return {
        "records": records(folder),
        "loaded": [{name: each[name] for name in each if name != "wall_s"} for each in agent.records],
        "episodes": agent.episodes,
        "evaluated": [pupil.evaluated for pupil in agent._trainer.pupils],
        "steps": [pupil.steps for pupil in agent._trainer.pupils],
        "minds": {name: array.tobytes() for name, array in flatten(agent._trainer.minds(), names).items()},
        "rows": [rows.tobytes() for rows in agent._trainer.rows()],
        "eval_returns": json.loads((folder / "summary.json").read_text())["eval_returns"],
    }


class World:
    """Runs that nobody attacked, by which others are known."""

    def __init__(self, home: Path) -> None:
        for words in (WORDS, ["resume", "folder"], ["resume", "folder", "--episodes", str(MORE)]):
            _parsed(tuple(words))  # here, once for all processes
        self.folder, longer = home / "whole", home / "longer"
        for ended in (self.train(self.folder), self.train(longer), self.resume(longer, MORE)):
            assert ended.code == 0, ended
        self.whole, self.longer = self.told(self.folder), self.told(longer)

    def train(self, folder: Path, **options: Any) -> Ended:
        return train(folder, **options)

    def resume(self, folder: Path, more: int = 0, **options: Any) -> Ended:
        return resume(folder, more, **options)

    def told(self, folder: Path) -> dict[str, Any]:
        with stubbed():
            return told(folder)

    def finished(self, folder: Path, more: int = 0) -> str | None:
        """What is wrong with a run that was attacked, after it was told to go on to its end."""
        started = (folder / "config.json").exists()
        ended = self.resume(folder) if started else self.train(folder)
        if ended.code and "has finished" not in ended.err:
            return f"going on ends in {ended}"
        if more and json.loads((folder / "config.json").read_text())["episodes"] == EPISODES:
            ended = self.resume(folder, more)  # it was attacked before it was known that there should be more
            if ended.code:
                return f"going on for longer ends in {ended}"
        return self.difference(folder, more)

    def difference(self, folder: Path, more: int = 0) -> str | None:
        """What a run tells otherwise than the one that nobody attacked."""
        found, wanted = self.told(folder), self.longer if more else self.whole
        wrong = [name for name in wanted if found[name] != wanted[name]]
        left = [path.name for path in folder.rglob(".cdpo-*.tmp")]
        if wrong:
            return f"its {', '.join(wrong)} differ"
        return f"{left[0]} is left over" if left else None
