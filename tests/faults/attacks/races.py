"""Two processes on one folder: one of them writes, the other is told so, and whoever reads sees what is whole."""

import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import cdpo
from attacks.answers import wrong_answer
from attacks.base import MISTAKE, Child
from attacks.calls import Calls, crash
from attacks.crashes import count_calls
from attacks.world import EPISODES, MORE, SEEDS, WORDS, World, stubbed, train, work
from cdpo.errors import UserError
from cdpo.report import build_page
from cdpo.runs import RunFolder

PAUSE = 0.01  # seconds that an episode takes
OFFSET = 0.15  # seconds by which the second comes later, at most


class Races:
    """Pairs of writers, and of a writer and a reader, the second of them a random while after the first."""

    whole: ClassVar[int] = 200

    def __init__(self, home: Path) -> None:
        self.world, self.half = World(home), home / "half"
        calls = count_calls(home / "counted")
        assert train(self.half, within=Calls(home, crash(3 * calls // 4, "before")).entered).killed

    def trial(self, seed: int, folder: Path) -> str | None:
        chance, run = random.Random(seed), folder / "run"
        races = (self._train_and_resume, self._two_resumes, self._two_longer, self._two_saves, self._save_and_train,
                 self._read)  # fmt: skip
        race = races[seed % len(races)]
        failure = race(run, chance)
        return f"{race.__name__.strip('_').replace('_', ' ')}: {failure}" if failure else None

    def _train_and_resume(self, run: Path, chance: random.Random) -> str | None:
        first = Child(_work(*WORDS, "--out", str(run)))
        while not (run / "config.json").exists() and first.alive(0.001):
            pass
        return self._raced(run, chance, first, _work("resume", str(run)))

    def _two_resumes(self, run: Path, chance: random.Random) -> str | None:
        shutil.copytree(self.half, run)
        return self._raced(run, chance, Child(_work("resume", str(run))), _work("resume", str(run)))

    def _two_longer(self, run: Path, chance: random.Random) -> str | None:
        """Both ask for more; each who wins gets it."""
        shutil.copytree(self.world.folder, run)
        longer = _work("resume", str(run), "--episodes", str(MORE))
        return self._raced(run, chance, Child(longer), longer, MORE)

    def _two_saves(self, run: Path, chance: random.Random) -> str | None:
        return self._raced(run, chance, Child(self._save(run)), self._save(run))

    def _save_and_train(self, run: Path, chance: random.Random) -> str | None:
        return self._raced(run, chance, Child(_work(*WORDS, "--out", str(run))), self._save(run))

    def _save(self, run: Path) -> Callable[[], int]:
        """The whole run, from memory into a folder."""

        def save() -> int:
            with stubbed():
                try:
                    cdpo.load(self.world.folder).save(run)
                except UserError as error:
                    print(f"cdpo: {error}", file=sys.stderr)
                    return MISTAKE
            return 0

        return save

    def _raced(
        self, run: Path, chance: random.Random, first: Child, second: Callable[[], Any], more: int = 0
    ) -> str | None:
        """What is wrong after both."""
        first.alive(chance.uniform(0.0, OFFSET))
        ended = [Child(second).wait(), first.wait()]
        for each in ended:
            if each.code not in (0, MISTAKE) or (each.code and not each.in_one_line):
                return f"one of them ends in {each}"
        if all(each.code for each in ended):
            return f"neither of them wins: {ended[0]}, {ended[1]}"
        if more and not any(each.code for each in ended):  # one after the other
            return None if len(RunFolder(run).records()) == SEEDS * (EPISODES + 1 + 2 * more) else "records are missing"
        return self.world.finished(run, more)

    def _read(self, run: Path, chance: random.Random) -> str | None:
        """Again and again, while somebody writes."""
        writer = Child(_work(*WORDS, "--out", str(run)))
        while not (run / "config.json").exists() and writer.alive(0.001):
            pass
        wanted, failure = self.world.whole["loaded"], None
        while writer.alive(chance.uniform(0.0, 0.01)) and not failure:
            failure = self._read_once(run, wanted, chance)
        ended = writer.wait()
        if failure or ended.code:
            return failure or f"the writer ends in {ended}"
        return self.world.finished(run)

    def _read_once(self, run: Path, wanted: list[dict[str, Any]], chance: random.Random) -> str | None:
        def begins(records: list[dict[str, Any]]) -> bool:
            bare = [{name: each[name] for name in each if name != "wall_s"} for each in records]
            return bare == wanted[: len(bare)]

        with stubbed():
            if chance.random() < 0.05:
                return wrong_answer(lambda: build_page([RunFolder.open(run)]), bool)
            if chance.random() < 0.5:
                return wrong_answer(lambda: RunFolder.open(run).records(), begins)
            return wrong_answer(lambda: cdpo.load(run).records, begins)


def _work(*words: str) -> Callable[[], None]:
    return work(*words, pause=PAUSE)
