"""The process dies, or the power goes, at a call that changes the folder; half of a write may have been made."""

import contextlib
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

from attacks.calls import Call, Calls, crash
from attacks.disk import Disk
from attacks.world import MORE, World, resume, train

WHENS = ("before", "torn", "after")


class Crashes:
    """Every call of training in turn; then, in some trials, another one in what mends it, or in going on for longer."""

    whole: ClassVar[int] = 1000

    def __init__(self, home: Path) -> None:
        self.world = World(home)
        self.calls = count_calls(home / "counted")
        self.made = count_calls(home / "made", until_made=True)

    def trial(self, seed: int, folder: Path) -> str | None:
        chance, run = random.Random(seed), folder / "run"
        number, when = seed % self.calls, WHENS[seed // self.calls % len(WHENS)]
        patience, power = chance.choice([0.0, 0.0, 30.0]), chance.random() < 0.5
        crashed = train(run, patience=patience, within=attacked(folder, number, when, chance if power else None))
        if not crashed.killed and crashed.code:
            return f"training ends in {crashed}"
        if number > self.made and not (run / "config.json").exists():
            return "the run is gone, though it was on the disk"
        for _ in range(chance.choice([0, 1, 2])):
            if failure := self._again(run, folder, chance, 0, patience):
                return failure
        more = chance.choice([0, 0, MORE])
        if more and (failure := self.world.finished(run) or self._again(run, folder, chance, more, patience)):
            return failure
        return self.world.finished(run, more)

    def _again(self, run: Path, folder: Path, chance: random.Random, more: int, patience: float) -> str | None:
        """A crash in going on."""
        if not (run / "config.json").exists():
            return None
        within = attacked(folder, chance.randrange(self.calls), chance.choice(WHENS), chance)
        ended = resume(run, more, patience=patience, within=within)
        finished = ended.code == 2 and "has finished" in ended.err
        return None if ended.killed or not ended.code or finished else f"going on ends in {ended}"


def attacked(
    folder: Path, at: int, when: str, chance: random.Random | None
) -> Callable[[], AbstractContextManager[Calls]]:
    """Where the process dies at a call; with chances to take, the power goes as well."""
    disk = Disk(chance)
    return Calls(folder, crash(at, when, disk if chance else None), disk).entered


def count_calls(folder: Path, *, until_made: bool = False) -> int:
    """How many calls training makes; or those until there is something in its folder."""
    folder.mkdir()
    seen: list[bool] = []

    def count(call: Call, number: int) -> Any:
        seen.append((folder / "run" / "checkpoints").exists())
        return call.make()

    @contextlib.contextmanager
    def counting() -> Iterator[None]:
        with Calls(folder, count).entered():
            try:
                yield
            finally:
                print(seen.index(True) if until_made else len(seen), file=sys.stderr)

    ended = train(folder / "run", within=counting)
    assert ended.code == 0, ended
    return int(ended.err.splitlines()[-1])
