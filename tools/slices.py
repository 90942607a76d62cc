"""Which of the slow tests run at a commit: as many as there is time for, others at every commit.

`tests/durations.json` has the seconds that each took when all ran (`make durations`). The order in which tests are
taken is drawn anew by the commit's hash, so that where there is time for half of them, ten commits leave one in a
thousand unseen.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

DURATIONS = Path(__file__).parent.parent / "tests" / "durations.json"
BUDGET = 1200.0  # seconds of tests one after another, which is half as long for two workers
UNKNOWN = 60.0  # seconds, of a test that is not in the file yet


def recorded() -> dict[str, float]:
    """Seconds by test."""
    return json.loads(DURATIONS.read_text())


def record(seconds: Mapping[str, float]) -> None:
    """Keeps what all the slow tests took."""
    rounded = {test: round(seconds[test], 1) for test in sorted(seconds)}
    DURATIONS.write_text(json.dumps(rounded, indent=0, ensure_ascii=False) + "\n")


def chosen(tests: Iterable[str], commit: str, budget: float, seconds: Mapping[str, float]) -> set[str]:
    """Tests that take at most `budget` seconds one after another; first those that nobody has timed yet."""
    known = {test: test in seconds for test in tests}
    order = sorted(known, key=lambda test: (known[test], hashlib.sha256(f"{commit} {test}".encode()).digest()))
    taken: set[str] = set()
    for test in order:
        cost = seconds.get(test, UNKNOWN)
        if cost <= budget:
            taken.add(test)
            budget -= cost
    return taken
