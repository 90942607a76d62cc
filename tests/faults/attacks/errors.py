"""The system refuses a call that changes the folder, once or from then on, takes the folder away, or the output."""

import errno
import os
import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

from attacks.base import FAULT, MISTAKE, Child
from attacks.calls import Call, Calls, crash, fail
from attacks.crashes import count_calls
from attacks.world import WORDS, World, resume, train, work
from cdpo.runs import RunFolder

REFUSED = ("ENOSPC", "EIO", "EDQUOT", "EMFILE", "EROFS", "EPIPE")


class Errors:
    """Each call of training is refused in turn, for each reason."""

    whole: ClassVar[int] = 300

    def __init__(self, home: Path) -> None:
        self.world = World(home)
        self.calls = count_calls(home / "counted")

    def trial(self, seed: int, folder: Path) -> str | None:
        chance, run = random.Random(seed), folder / "run"
        number = seed % self.calls
        reason = chance.choice([*REFUSED, "away", "output"])
        if reason == "output":
            return self._without_output(run)
        if reason == "away":
            within, resumed = _taken_away(folder, number), False
        else:
            lasting, torn, resumed = chance.random() < 0.5, chance.random() < 0.5, chance.random() < 0.3
            react = fail(number, getattr(errno, reason), lasting=lasting, torn=torn)
            within = Calls(folder, react).entered
        return self._told(run, folder, within, resumed, f"{reason} at call {number}")

    def _told(
        self, run: Path, folder: Path, within: Callable[[], AbstractContextManager[Any]], resumed: bool, what: str
    ) -> str | None:
        """What is wrong with how training, or going on with it, meets an error, and with the run after it."""
        if resumed:
            assert train(run, within=Calls(folder, crash(self.calls // 2, "before")).entered).killed
        ended = resume(run, within=within) if resumed else train(run, within=within)
        if (folder / "away").exists():
            (folder / "away").rename(run)
        # What cannot be opened or made at all may be the user's mistake: a folder of somebody else's.
        if ended.code and not (ended.in_one_line and ended.code in (FAULT, MISTAKE)):
            return f"{what}: {ended}"
        if ended.code:
            wrong = self.world.finished(run)
        else:  # some errors do no harm; if what was half-written could not be removed, the next who writes does it
            with RunFolder(run).writing():
                pass
            wrong = self.world.difference(run)
        return f"{what}: {wrong}" if wrong else None

    def _without_output(self, run: Path) -> str | None:
        """Nobody reads what the command says."""
        reading, writing = os.pipe()
        os.close(reading)
        child = Child(work(*WORDS, "--out", str(run)), out=writing)
        os.close(writing)
        ended = child.wait()
        if "Traceback" in ended.err or ended.code not in (0, FAULT):
            return f"without output: {ended}"
        return self.world.finished(run)


def _taken_away(folder: Path, at: int) -> Callable[[], AbstractContextManager[Any]]:
    """At a call the run's folder has another name."""

    def react(call: Call, number: int) -> Any:
        if number == at and (folder / "run").exists():
            _rename(folder / "run", folder / "away")
        return call.make()

    return Calls(folder, react).entered


_rename = os.rename
