"""Which of the slow tests run at a commit: a tenth of them by turns, and of the others as many as there is time for.

`tests/durations.json` has the turn of each test and the seconds that it takes (`make durations`). Turns follow the
commits of the first parent: if each landing is one of these, ten landings see every test. What else there is time for
is drawn by the commit's hash.
"""

import hashlib
import json
import math
import subprocess
from collections.abc import Collection, Mapping
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parents[1]
DURATIONS = ROOT / "tests" / "durations.json"
TURNS = 10
BUDGET = 1500.0  # seconds of tests one after another, which is half as long for two workers
UNKNOWN = 60.0  # seconds, of a test that is not in the file yet

Durations = Mapping[str, tuple[int, float]]  # turn and seconds of each test


def recorded() -> Durations:
    """What is in the file."""
    return {test: (turn, seconds) for test, (turn, seconds) in json.loads(DURATIONS.read_text()).items()}


def record(seconds: Mapping[str, float], before: Durations) -> dict[str, tuple[int, float]]:
    """What tests took, and what is known of other files. Tests keep their turns; new ones go where least is."""
    files = {_file(test) for test in seconds}
    known = {test: each for test, each in before.items() if _file(test) not in files}
    known |= {test: (before[test][0], round(took, 1)) for test, took in seconds.items() if test in before}
    for test in sorted(seconds.keys() - before.keys(), key=lambda test: (-seconds[test], test)):
        loads = [sum(took for turn, took in known.values() if turn == each) for each in range(TURNS)]
        known[test] = loads.index(min(loads)), round(seconds[test], 1)
    return dict(sorted(known.items()))


def write(durations: Durations) -> None:
    """Into the file, a line for each test."""
    lines = (f" {json.dumps(test, ensure_ascii=False)}: {json.dumps(each)}" for test, each in durations.items())
    DURATIONS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def here() -> tuple[str, int]:
    """The commit, and whose turn it is; without a whole history its hash says so, and without any the day's."""
    commit = _git("rev-parse", "HEAD") or date.today().isoformat()
    count = _git("rev-list", "--count", "--first-parent", "HEAD")
    if not count or _git("rev-parse", "--is-shallow-repository") != "false":
        return commit, _turn(commit)
    return commit, int(count) % TURNS


def chosen(tests: Collection[str], commit: str, turn: int, budget: float, durations: Durations) -> set[str]:
    """Tests that take at most `budget` seconds one after another; a ValueError if those whose turn it is take longer.

    After these come others that nobody has timed yet, and then the rest, both in an order of the commit's own.
    """
    cost = {test: durations[test][1] if test in durations else UNKNOWN for test in tests}
    taken = {test for test in tests if (durations[test][0] if test in durations else _turn(test)) == turn}
    budget -= math.fsum(cost[test] for test in taken)  # the same in whatever order: each worker chooses for itself
    if budget < 0:
        raise ValueError(f"tests whose turn it is take {-budget:.0f} s too long; run: make durations")
    for test in sorted(set(tests) - taken, key=lambda test: (test in durations, _hash(f"{commit} {test}"))):
        if cost[test] <= budget:
            taken.add(test)
            budget -= cost[test]
    return taken


def _git(*words: str) -> str:
    """What git says; nothing where it cannot."""
    try:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _file(test: str) -> str:
    return test.partition("::")[0]


def _turn(text: str) -> int:
    return int.from_bytes(_hash(text)) % TURNS


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
