"""JSON that a stranger made up: refused in one line, and in no time or memory, or read for what it says."""

import contextlib
import json
import multiprocessing
import os
import random
import shutil
import time
import zipfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import cdpo
from attacks.answers import LIMIT, limit_memory, wrong_answer
from attacks.base import Child
from cdpo.commands.folders import Resume
from cdpo.report import build_page
from cdpo.runs import RunFolder

GOLDEN = Path(__file__).parents[2] / "golden" / "0.1.0"  # without checksums: a stranger could make them as well
KINDS = {  # of folders, and how each of them is read
    "sac": ("load", "policy", "page", "resume", "records"),
    "train-interrupted": ("load", "policy", "page", "resume", "records"),
    "policy-of-one-seed": ("load", "policy", "page"),
    "tabular-interrupted": ("resume", "page"),
    "tabular": ("resume", "page"),
    "reproduction-tabular": ("page", "records"),
}
MEMORY = 8 << 30  # bytes more than the reader has at first
LONG = 90.0  # seconds for what is no mistake, and is read: compiling takes its time
DEEP = 10**6
NUMBERS = {"horizon", "seeds", "seed", "episodes", "steps", "sizes", "rows", "episode"}  # by which memory is taken
HOLE = "a place that is to be filled"

# As they would stand in a file.
VALUES = (
    "1e999", "-1e999", "1e308", "NaN", "Infinity", "-Infinity", "-1", "0", "-0.0", "0.5", "1e-400", "2e8", "200000000",
    "1000000", "10001", "2147483647", "2147483648", "9223372036854775808", "-9223372036854775809", "9" * 400,
    "9" * 5000,
    "null", "true", "false", '""', '"1"', '"cdpo"', '"x"', '"../../../etc/passwd"', '"os:system"', '"__main__:x"',
    r'"\ud800"', r'"\u0000"', r'"\u001b[2J"', r'"\n\r\u2028"', '"' + "x" * 10**6 + '"', "[]", "{}", "[[]]", "[null]",
    '{"a": 1}', "[1, 2, 3]", "[-1]", "[1e999]", "[1000000, 1000000]", "[" + "8," * 10**6 + "8]",
    "[" * DEEP + "]" * DEEP,
    '{"a":' * DEEP + "1" + "}" * DEEP, "[" * 500 + "]" * 500, '{"": 0}', "1" + "0" * 4299, "01", "+1", "'x'", "0x10",
)  # fmt: skip


class Reached(Exception):
    """Everything was read, and training would go on."""


class Hostile:
    """A value or several somewhere in a file, or a file that is none."""

    whole: ClassVar[int] = 1000

    def __init__(self, home: Path) -> None:
        self.home = home
        for name in KINDS:
            with zipfile.ZipFile(GOLDEN / f"{name}.zip") as archive:
                archive.extractall(home / name)
        self.reader = Reader(home)

    def trial(self, seed: int, folder: Path) -> str | None:
        chance, run = random.Random(seed), folder / "run"
        name = chance.choice(list(KINDS))
        shutil.copytree(self.home / name / "run", run)
        files = [path for path in (run / "config.json", run / "metrics.jsonl", run / "summary.json") if path.exists()]
        path = chance.choice([*files, run / "config.json", run / "config.json", *run.glob("checkpoints/*.npz")])
        what = _spoil(path, chance)
        reader = chance.choice(KINDS[name])
        failure = self.reader.answer(reader, run)
        return f"{name}, {path.name}, {what}, by {reader}: {failure}" if failure else None


class Reader:
    """A process that reads what it is told to, in little memory; where it dies, another one takes its place."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._begin()

    def answer(self, reader: str, folder: Path) -> str | None:
        """What is wrong with its answer."""
        self._there.send((reader, str(folder)))
        if self._there.poll(LONG + 30):
            try:
                answer: str | None = self._there.recv()
                return answer
            except EOFError:
                pass
        self._child.kill()
        ended = self._child.wait()
        self._begin()
        return f"the process hung or died: {ended}"

    def _begin(self) -> None:
        self._there, here = multiprocessing.Pipe()
        self._child = Child(lambda: self._serve(here))
        here.close()

    def _serve(self, here: Connection) -> None:
        import jax

        self._there.close()
        os.environ["XDG_CACHE_HOME"] = str(self._home / "cache")
        jax.config.update("jax_compilation_cache_dir", str(self._home / "compiled"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_disable_most_optimizations", True)
        cdpo.load(self._home / "sac" / "run")  # whatever is compiled and mapped once
        limit_memory(MEMORY)
        while True:
            try:
                reader, folder = here.recv()
            except EOFError:
                return
            here.send(_answer(reader, Path(folder)))


def _answer(reader: str, folder: Path) -> str | None:
    began = time.monotonic()
    accepted = False

    def accept(_: Any) -> bool:
        nonlocal accepted
        accepted = True
        return True

    wrong = wrong_answer(lambda: _READ[reader](folder), accept, LONG)
    taken = time.monotonic() - began
    if wrong is None and not accepted and taken > LIMIT:
        return f"it was refused after {taken:.0f} s"
    return wrong


def _resume(folder: Path) -> None:
    """Up to where training would begin."""
    with (
        mock.patch("cdpo.commands.training.train", side_effect=Reached),
        mock.patch("cdpo.commands.folders.finish_tabular", side_effect=Reached),
        contextlib.suppress(Reached),
    ):
        Resume(folder).run(["resume", str(folder)])


_READ: dict[str, Callable[[Path], Any]] = {
    "load": cdpo.load,
    "policy": lambda folder: cdpo.load(folder, policy_only=True),
    "page": lambda folder: build_page([RunFolder.open(folder)]),
    "resume": _resume,
    "records": lambda folder: RunFolder.open(folder).records(),
}


def _spoil(path: Path, chance: random.Random) -> str:
    """Writes something into a file; what, in words."""
    if path.suffix == ".npz":
        with zipfile.ZipFile(path) as archive:
            members = {info.filename: archive.read(info) for info in archive.infolist()}
        members["meta.json"], what = _spoilt(members["meta.json"], chance)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
            for name, content in members.items():
                archive.writestr(zipfile.ZipInfo(name), content)
        return what
    if path.suffix == ".jsonl":
        lines = path.read_bytes().splitlines() or [b"{}"]
        number = chance.randrange(len(lines))
        lines[number], what = _spoilt(lines[number], chance)
        path.write_bytes(b"\n".join(lines) + b"\n")
        return f"line {number + 1}, {what}"
    spoilt, what = _spoilt(path.read_bytes(), chance)
    path.write_bytes(spoilt)
    return what


def _spoilt(text: bytes, chance: random.Random) -> tuple[bytes, str]:
    if chance.random() < 0.1:
        return _no_json(text, chance)
    value = json.loads(text)
    chosen = [chance.choice(VALUES) for _ in range(chance.choice([1, 1, 1, 2, 4]))]
    places = []
    for _ in chosen:
        value, place = _with_hole(value, chance)
        places.append(place)
    parts = json.dumps(value).split(json.dumps(HOLE))
    filled = parts[0] + "".join(
        each + part for each, part in zip(_cycle(chosen, len(parts) - 1), parts[1:], strict=True)
    )
    shown = ", ".join(f"{place} = {each[:30]}" for place, each in zip(places, chosen, strict=True))
    return filled.encode(), shown


def _cycle(values: list[str], count: int) -> list[str]:
    return [values[number % len(values)] for number in range(count)]


def _with_hole(value: Any, chance: random.Random) -> tuple[Any, str]:
    """With a hole somewhere, in place of what there was, or beside it under a name of its own or the same one."""
    if not isinstance(value, dict | list) or not value or chance.random() < 0.04:
        return HOLE, "all"
    if isinstance(value, list):
        at = chance.randrange(len(value))
        inner, place = _with_hole(value[at], chance)
        return [*value[:at], inner, *value[at + 1 :]], f"[{at}] {place}"
    name = chance.choice(
        [*value, *(each for each in value if isinstance(value[each], int)), *sorted(NUMBERS & value.keys())]
    )
    match chance.random():
        case draw if draw < 0.05:
            return {each: value[each] for each in value if each != name}, f"no {name}"
        case draw if draw < 0.1:
            return {**value, "unknown": HOLE}, "unknown"
        case draw if draw < 0.15:
            return _Twice({**value, name: HOLE}, name, value[name]), f"{name} twice"
    if chance.random() < 0.3:  # else most holes would be in settings, whose types are all checked in one place
        return {**value, name: HOLE}, name
    inner, place = _with_hole(value[name], chance)
    return {**value, name: inner}, f"{name} {place}"


class _Twice(dict[str, Any]):
    """A dictionary that has one name twice when it is written."""

    def __init__(self, value: dict[str, Any], name: str, other: Any) -> None:
        super().__init__(value)
        self._more = name, other

    def items(self) -> Any:
        return [*super().items(), self._more]


def _no_json(text: bytes, chance: random.Random) -> tuple[bytes, str]:
    """Bytes that are no JSON, or hardly."""
    at = chance.randrange(len(text))
    kinds = {
        "a null byte": text[:at] + b"\0" + text[at:],
        "no UTF-8": text[:at] + b"\xff\xfe\xc0" + text[at:],
        "a mark of the byte order": b"\xef\xbb\xbf" + text,
        "UTF-16": text.decode().encode("utf-16"),
        "something after the end": text + b"{}",
        "millions of blanks": b" " * 10**7 + text,
        "twice the whole": text + text,
        "a surrogate in UTF-8": text[:at] + b"\xed\xa0\x80" + text[at:],
    }
    name = chance.choice(list(kinds))
    return kinds[name], name
