"""Attacks run folders, and shows what of it they did not bear.

    python tools/faults.py [ATTACK ...] [--count N | --share X] [--seed S] [--keep]

A whole run makes all attacks (tests/faults/attacks) as often as each says, which takes about an hour of one core. The
table names, for each attack that failed, the seed of the first trial that did, by which it is made again:

    python tools/faults.py crashes --count 1 --seed 17

With --keep what was tried and what failed is added to results/faults/totals.csv, if the working tree is a commit's.
"""

import argparse
import contextlib
import csv
import importlib
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TOTALS = ROOT / "results" / "faults" / "totals.csv"
COLUMNS = ("date", "commit", "attack", "tried", "failed", "seed")
ATTACKS = {
    "kills": "Kills",
    "crashes": "Crashes",
    "errors": "Errors",
    "damage": "Damage",
    "hostile": "Hostile",
    "strangers": "Strangers",
    "races": "Races",
}
SHOWN = 10  # failures of an attack that are told one by one

sys.path.insert(0, str(ROOT / "tests" / "faults"))


@dataclass
class Tally:
    """What came of an attack."""

    attack: str
    first: int  # the seed of its first trial
    tried: int = 0
    failures: dict[int, str] = field(default_factory=dict)  # by the seeds of their trials

    @property
    def row(self) -> tuple[str, str, str, str]:
        again = f"{self.attack} --count 1 --seed {min(self.failures)}" if self.failures else ""
        return self.attack, f"{self.tried:,}", f"{len(self.failures):,}", again


def make(kind: type[Any], name: str, count: int, seed: int) -> Tally:
    """Attack so often, each time in a new folder; progress goes to standard error."""
    tally, said = Tally(name, seed), time.monotonic()
    with _folder() as home:
        (home / "home").mkdir()
        attack = kind(home / "home")
        for number in range(seed, seed + count):
            (home / "trial").mkdir()
            try:
                failure = attack.trial(number, home / "trial")
            except Exception as error:  # of a loader, which tells of damage otherwise
                failure = f"{type(error).__name__}: {error}"
            shutil.rmtree(home / "trial")
            tally.tried += 1
            if failure:
                tally.failures[number] = failure
                if len(tally.failures) <= SHOWN:
                    print(f"  {name} {number}: {failure}", file=sys.stderr, flush=True)
            if time.monotonic() - said > 30:
                said = time.monotonic()
                print(f"  {name}: {tally.tried:,} of {count:,}", file=sys.stderr, flush=True)
    return tally


def apart(kind: type[Any], name: str, count: int, seed: int) -> Tally:
    """The same in a process of its own: some compute, and processes that have do not take kindly to forks."""
    with ProcessPoolExecutor(1, get_context("fork")) as pool:
        return pool.submit(make, kind, name, count, seed).result()


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """In memory where that can be: nothing here waits for a disk, whose part is played by `attacks.disk`."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="cdpo-faults-", dir=memory if os.access(memory, os.W_OK) else None) as name:
        yield Path(name).resolve()


def table(tallies: Sequence[Tally]) -> str:
    """One line for each attack."""
    rows = [("attack", "tried", "failed", "seed to repeat"), *(tally.row for tally in tallies)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(each.ljust(width) for each, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def keep(tallies: Sequence[Tally]) -> None:
    """Add to the totals, if it is known what was attacked."""
    if _git("status", "--porcelain", "--", "src", "tests/faults", "tools/faults.py"):
        print("not kept: the working tree is not that of a commit", file=sys.stderr)
        return
    commit, date = _git("rev-parse", "--short", "HEAD"), time.strftime("%Y-%m-%d")
    with open(TOTALS, "a", newline="", encoding="utf-8") as file:
        writer: Any = csv.writer(file, lineterminator="\n")
        for tally in tallies:
            writer.writerow([date, commit, tally.attack, tally.tried, len(tally.failures), tally.first])


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def main() -> int:
    """The command; its exit code is 1 if anything failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help=f"of {', '.join(ATTACKS)}; all if none is named")
    parser.add_argument("--count", type=int, help="trials of each; as many as a whole run has if not given")
    parser.add_argument("--share", type=float, default=1.0, help="of a whole run, if no count is given")
    parser.add_argument("--seed", type=int, help="of the first trial, drawn if not given; those that follow count up")
    parser.add_argument("--keep", action="store_true", help="add to results/faults/totals.csv")
    told = parser.parse_args()
    for name in told.attacks:
        if name not in ATTACKS:
            parser.error(f"unknown attack {name!r} (known: {', '.join(ATTACKS)})")
    seed = random.randrange(10**6) if told.seed is None else told.seed
    kinds = {
        name: getattr(importlib.import_module(f"attacks.{name}"), ATTACKS[name]) for name in told.attacks or ATTACKS
    }
    counts = {name: told.count or math.ceil(told.share * kind.whole) for name, kind in kinds.items()}
    tallies = [apart(kind, name, counts[name], seed) for name, kind in kinds.items()]
    print(table(tallies))
    if told.keep:
        keep(tallies)
    return int(any(tally.failures for tally in tallies))


if __name__ == "__main__":
    sys.exit(main())
