"""Which of the slow tests run at a commit: a tenth of them by turns, and of the others as many as there is time for.

`tests/durations.json` has the seconds that each takes (`make durations`). Turns follow the commits of the first parent:
if each landing is one of these, ten landings see every test. What else there is time for is drawn by the commit's hash.
"""

import hashlib
import json
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
DURATIONS = ROOT / "tests" / "durations.json"
TURNS = 10
BUDGET = 1200.0  # seconds of tests one after another, which is half as long for two workers
UNKNOWN = 60.0  # seconds, of a test that is not in the file yet


def recorded() -> dict[str, float]:
    """Seconds by test."""
    return json.loads(DURATIONS.read_text())


def record(seconds: Mapping[str, float]) -> None:
    """Keeps what all the slow tests took."""
    rounded = {test: round(seconds[test], 1) for test in sorted(seconds)}
    DURATIONS.write_text(json.dumps(rounded, indent=0, ensure_ascii=False) + "\n")


def turn(commit: str) -> int:
    """Whose turn it is, from 0 to 9."""
    command = ["git", "rev-list", "--count", "--first-parent", commit]
    return int(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout) % TURNS


def chosen(tests: Iterable[str], commit: str, turn: int, budget: float, seconds: Mapping[str, float]) -> set[str]:
    """Tests that take at most `budget` seconds one after another.

    First come those that nobody has timed yet, then those whose turn it is, then the others in an order of the commit's
    own.
    """
    tests = list(tests)
    due = [test for test in tests if test not in seconds]
    due += _parts([test for test in tests if test in seconds], seconds)[turn]
    others = sorted(set(tests) - set(due), key=lambda test: _hash(f"{commit} {test}"))
    taken: set[str] = set()
    for test in [*due, *others]:
        cost = seconds.get(test, UNKNOWN)
        if cost <= budget:
            taken.add(test)
            budget -= cost
    return taken


def _parts(tests: Iterable[str], seconds: Mapping[str, float]) -> list[list[str]]:
    """Ten parts that take about as long as each other: the longest tests first, each to where the least is."""
    parts: list[list[str]] = [[] for _ in range(TURNS)]
    loads = [0.0] * TURNS
    for test in sorted(tests, key=lambda test: (-seconds[test], _hash(test))):
        least = loads.index(min(loads))
        parts[least].append(test)
        loads[least] += seconds[test]
    return parts


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
