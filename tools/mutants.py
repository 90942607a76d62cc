"""Plants mistakes in a copy of the source, one at a time, and sees which the tests catch.

    python tools/mutants.py [--jobs 2] [NAME ...]

The mistakes are those of mutants.toml. A test file is only as good as what it would catch: whoever adds a part of the
library on which results lean adds the mistakes that a careful reader would look for in it.
"""

import argparse
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).with_suffix(".toml")
COPIED = ("src", "tests", "tools", "pyproject.toml")
PATIENCE = 1800  # seconds
PASSED, FAILED = 0, 1  # pytest's exit codes; any other is no verdict


class Stale(Exception):
    """The table does not fit the source or its tests."""


@dataclass(frozen=True)
class Mutant:
    """A mistake, and the tests that should catch it."""

    name: str
    file: str  # within src/cdpo
    old: str
    new: str
    tests: tuple[str, ...]  # as pytest takes them
    survives: str = ""  # why, if that is known

    def planted(self, source: str) -> str:
        """The text of its file with the mistake."""
        found = source.count(self.old)
        if found != 1:
            raise Stale(f"{self.name}: its text occurs {found} times in {self.file}, not once; see {TABLE.name}")
        return source.replace(self.old, self.new)


def read(table: Path = TABLE) -> list[Mutant]:
    """All of them, in their order."""
    entries = tomllib.loads(table.read_text(encoding="utf-8"))
    return [Mutant(name, **{**entry, "tests": tuple(entry["tests"])}) for name, entry in entries.items()]


class Copy:
    """A copy of source and tests. Copies in one folder share the programs that their tests compile."""

    def __init__(self, root: Path, scratch: Path, number: int) -> None:
        """Copies what the tests need."""
        self.path, self._temporary = scratch / f"copy-{number}", scratch / f"tests-{number}"
        self.path.mkdir()
        for name in COPIED:
            if (root / name).is_dir():
                shutil.copytree(root / name, self.path / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(root / name, self.path)
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(self.path / "src"),
            # A mistake may be as long as the truth, and planted within a second of it: bytecode would pass for newer.
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # some take seconds to import
            "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
            "OPENBLAS_NUM_THREADS": "1",
        }

    def fails(self, tests: Iterable[str]) -> str:
        """What pytest says of the first of these tests that fails; nothing if all pass."""
        options = ["-x", "-q", "--all", "-p", "no:cacheprovider", f"--basetemp={self._temporary}"]
        try:
            done = self._python("-m", "pytest", *options, *tests)
        except subprocess.TimeoutExpired:
            return f"no end after {PATIENCE} s"
        if done.returncode not in (PASSED, FAILED) or "error during collection" in done.stdout:
            raise Stale(f"pytest has no verdict:\n{done.stdout}{done.stderr}")
        return done.stdout if done.returncode == FAILED else ""

    def fails_with(self, mutant: Mutant) -> str:
        """The same of a mutant and its tests."""
        file = self.path / "src" / "cdpo" / mutant.file
        source = file.read_text(encoding="utf-8")
        file.write_text(mutant.planted(source), encoding="utf-8")
        try:
            return self.fails(mutant.tests)
        finally:
            file.write_text(source, encoding="utf-8")

    def check(self) -> None:
        """The tests must see this copy, whatever else is installed."""
        seen = self._python("-c", "import cdpo; print(cdpo.__file__)").stdout.strip()
        if not Path(seen).is_relative_to(self.path):
            raise Stale(f"tests would see {seen or 'no cdpo at all'} and not the copy")

    def _python(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words],
            cwd=self.path,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )


def survivors(mutants: Sequence[Mutant], root: Path, scratch: Path, jobs: int) -> list[Mutant]:
    """Those that no test of theirs catches; tells of each."""
    for mutant in mutants:
        mutant.planted((root / "src" / "cdpo" / mutant.file).read_text(encoding="utf-8"))
    copies = [Copy(root, scratch, number) for number in range(jobs)]
    copies[0].check()
    tests = dict.fromkeys(test for mutant in mutants for test in mutant.tests)
    print(f"{len(mutants)} mutants; without any of them their tests pass ...", flush=True)
    if failed := copies[0].fails(tests):
        raise Stale(f"a test fails without any mutant:\n{failed}")
    free: queue.SimpleQueue[Copy] = queue.SimpleQueue()
    for copy in copies:
        free.put(copy)

    def survived(mutant: Mutant) -> bool:
        copy, began = free.get(), time.monotonic()
        try:
            caught = copy.fails_with(mutant)
        finally:
            free.put(copy)
        print(f"{'killed  ' if caught else 'SURVIVED'} {time.monotonic() - began:6.1f} s  {mutant.name}", flush=True)
        return not caught

    with ThreadPoolExecutor(jobs) as pool:
        return [mutant for mutant, lives in zip(mutants, pool.map(survived, mutants), strict=True) if lives]


def main(words: Sequence[str] | None = None, table: Path = TABLE, root: Path = ROOT) -> int:
    """The exit code: 1 if a mutant survives for no known reason."""
    parser = argparse.ArgumentParser(description="Plant mistakes in a copy of the source; see which the tests catch.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of a mutant; all of them if none is given")
    parser.add_argument("--jobs", type=int, default=1, help="how many copies side by side")
    told = parser.parse_args(words)
    known = {mutant.name: mutant for mutant in read(table)}
    if unknown := [name for name in told.names if name not in known]:
        parser.error(f"no mutant is called {unknown[0]}; see {table.name}")
    mutants = [known[name] for name in told.names] or list(known.values())
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as scratch:
            alive = survivors(mutants, root, Path(scratch), told.jobs)
    except Stale as error:
        print(f"mutants: {error}", file=sys.stderr)
        return 2
    print(f"{len(mutants) - len(alive)} of {len(mutants)} killed in {time.monotonic() - began:.0f} s")
    for mutant in alive:
        print(f"SURVIVED {mutant.name} ({mutant.file}): {mutant.survives or 'no reason is known'}")
    return int(any(not mutant.survives for mutant in alive))


if __name__ == "__main__":
    sys.exit(main())
