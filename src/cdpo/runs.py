"""Run folders: what a run was told to do, what it measured, and what came out.

A process may be killed at any moment. Whatever stands under its final name is whole; only the last line of
`metrics.jsonl` can be torn, and is then ignored. What was not yet renamed stays under a hidden name until the next
writer comes. There is one writer at a time (see `cdpo.lock`), and any number of readers beside it.
"""

import contextlib
import os
import platform
import re
import shutil
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from cdpo.errors import UserError
from cdpo.files import damaged, inside, open_saved, quoted, sibling, sync, sync_folder, write_atomic
from cdpo.lock import Lock
from cdpo.sealed import Unsealed, sealed, unsealed
from cdpo.version import __version__, checked_format

# Of `config.json`, and with it of `metrics.jsonl` and `summary.json`; what is under `checkpoints` has its own.
FORMAT = 2
_SEALED = 2  # the first whose JSON has checksums
_HALF_WRITTEN = re.compile(r"\.cdpo-[0-9a-f]{32}\.tmp")  # the names of `files.sibling`, and no others
CONFIG, METRICS, SUMMARY = "config.json", "metrics.jsonl", "summary.json"


def check_free(path: str | Path) -> None:
    """Raises the UserError that `RunFolder.create(path, ...)` would raise, and creates nothing."""
    path = Path(path)
    try:
        path.lstat()
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:  # a ValueError for a name with a null character
        raise _cannot_create(path, error) from error
    else:
        raise UserError(f"{quoted(path)} already exists; choose another folder for the run")
    ancestor = next(parent for parent in path.absolute().parents if parent.exists())
    if not os.access(ancestor, os.W_OK | os.X_OK):
        raise UserError(f"cannot create {quoted(path)}: {quoted(ancestor)} is not writable; choose another")


@dataclass
class RunFolder:
    """The folder of one run. Get one by `RunFolder.create` or `RunFolder.open`."""

    path: Path

    def __post_init__(self) -> None:
        """Nobody writes yet."""
        self._lock: Lock | None = None
        self._held = contextlib.ExitStack()  # the lock, from the first of this process that writes to the last
        self._writers = 0
        self._lines: int | None = None  # of metrics.jsonl, once they were counted by who writes
        self._turn = threading.Lock()  # of threads of this process

    @classmethod
    def create(cls, path: str | Path, config: dict[str, Any]) -> "RunFolder":
        """A new run at `path`, which must not exist; its parents are made."""
        path = Path(path)
        check_free(path)
        text = sealed({"format": FORMAT, **config}, indent=2)
        # Filled under another name and then renamed, so that a run never exists without its configuration.
        temporary = sibling(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.mkdir()
            write_atomic(temporary / CONFIG, text)
            os.rename(temporary, path)
            sync_folder(path.parent)
        except BaseException as error:
            shutil.rmtree(temporary, ignore_errors=True)
            if isinstance(error, OSError):
                raise _cannot_create(path, error) from error
            raise
        return cls(path)

    @classmethod
    def open(cls, path: str | Path) -> "RunFolder":
        """The run at `path`; a UserError if there is none or its configuration is damaged."""
        run = cls(Path(path))
        if not run.path.is_dir():
            raise UserError(f"{quoted(path)} is not a run: there is no such folder")
        if not run.inside(CONFIG).exists():
            raise UserError(f"{quoted(path)} is not a run: it has no {CONFIG}")
        _ = run.config  # reading it is the check
        return run

    def inside(self, *names: str) -> Path:
        """The path of something in this folder; a UserError if a link is on the way, or no file or folder."""
        return inside(self.path, names)

    @property
    def config(self) -> dict[str, Any]:
        """What the run was told to do."""
        path = self.inside(CONFIG)
        data = _read(path)
        config = _object(path, data, required=False)
        told = checked_format(path, config.get("format", 1), FORMAT)  # before 0.2.0 it was not told
        return config if told < _SEALED else _object(path, data, required=True)

    @property
    def finished(self) -> bool:
        """Whether there is a summary; what it is of, may have been told to go on since."""
        return self.inside(SUMMARY).exists()

    @property
    def summary(self) -> dict[str, Any]:
        """What came out; a UserError while the run has not finished."""
        if not self.finished:
            raise UserError(f"{quoted(self.path)} has no {SUMMARY}: the run has not finished; run it again")
        path = self.inside(SUMMARY)
        return _object(path, _read(path), required=self._is_sealed)

    @property
    def figures(self) -> Path:
        """The folder of figures, which is made when first asked for."""
        return self.folder("figures")

    def file(self, *names: str) -> Path:
        """The path of a file in this folder, there already or not."""
        path = self.inside(*names)
        if path.is_dir():
            raise UserError(f"{quoted(path)} is a folder where a file belongs; move it elsewhere")
        return path

    def folder(self, name: str) -> Path:
        """A folder in this one, which is made when first asked for."""
        path = self.inside(name)
        if path.is_file():
            raise UserError(f"{quoted(path)} is a file where a folder belongs; move it elsewhere")
        path.mkdir(exist_ok=True)
        return path

    @contextlib.contextmanager
    def writing(self, *, taking_over: bool = False) -> Iterator[None]:
        """Inside, this process is the only one that writes here; a UserError if another one does already.

        `taking_over` is for whoever knows that the other one was given up: that ends before it would write again.
        """
        with self._turn:
            if self._writers == 0:
                lock = Lock(self.path)
                self._held.enter_context(lock.held(taking_over=taking_over))
                self._lock, self._lines = lock, None
                self._sweep()
            self._writers += 1
        try:
            yield
        finally:
            with self._turn:
                self._writers -= 1
                if self._writers == 0:
                    self._held.close()

    def check_writing(self) -> None:
        """A UserError if another writer has taken over."""
        assert self._lock is not None and self._writers, "a run folder is written inside `with folder.writing()`"
        self._lock.check()

    def write_config(self, config: dict[str, Any]) -> None:
        """Writes another `config.json`, of the same format."""
        with self.writing():
            self.check_writing()
            write_atomic(self.file(CONFIG), sealed(config, indent=2))

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Writes `summary.json` as a whole; it also tells how many lines `metrics.jsonl` has."""
        with self.writing():
            self.check_writing()
            lines = self._counted()
            write_atomic(self.file(SUMMARY), sealed(summary | ({"lines": lines} if lines else {}), indent=2))

    def remove_summary(self) -> None:
        """Of a run that goes on."""
        with self.writing():
            self.check_writing()
            self.file(SUMMARY).unlink(missing_ok=True)
            sync_folder(self.path)

    def append(self, record: dict[str, Any]) -> None:
        """Adds one line to `metrics.jsonl`; it is on the disk when this returns."""
        self.extend([record])

    def extend(self, records: Sequence[dict[str, Any]]) -> None:
        """Adds a line for each record to `metrics.jsonl`; they are on the disk when this returns."""
        with self.writing(), self._turn:
            self.check_writing()
            first = self._counted()
            lines = "".join(sealed(record, place=place) for place, record in enumerate(records, start=first)).encode()
            path = self.inside(METRICS)
            if not path.exists():
                write_atomic(path, b"")
            with open_saved(path, "r+b") as file:
                _cut_torn_line(file)
                file.write(lines)
                sync(file)
            self._lines = first + len(records)

    def records(self, size: int | None = None) -> list[dict[str, Any]]:
        """Every record of `metrics.jsonl`, less a last line that a crash tore; or of its first `size` bytes."""
        path = self.inside(METRICS)
        if not path.exists():
            return []
        required, told = self._is_sealed, self.summary.get("lines", 0) if self.finished else None
        *lines, _torn = _read(path)[:size].split(b"\n")
        records = []
        for place, line in enumerate(lines):
            try:
                records.append(unsealed(line, required=required, place=place))
            except Unsealed as error:
                if place == len(lines) - 1 and told is None and size is None:
                    break
                raise damaged(path, f"line {place + 1}: {error}") from error
        if isinstance(told, int) and size is None and len(records) < told:
            raise damaged(path, f"it has {len(records)} of {told} lines")
        return records

    def set_aside(self, names: Sequence[tuple[str, ...]]) -> Path:
        """Moves files of this folder that are there into a new one in it; where that is."""
        with self.writing():
            number = 1
            while os.path.lexists(self.path / f"before-restart-{number}"):
                number += 1
            aside = self.folder(f"before-restart-{number}")
            for place in names:
                old = self.inside(*place)
                if old.exists():
                    (aside / Path(*place)).parent.mkdir(exist_ok=True)
                    os.rename(old, aside / Path(*place))
            self._lines = None
            return aside

    def _counted(self) -> int:
        """Whole lines of `metrics.jsonl`. They are counted once: nobody else writes, and nothing is cut after that."""
        if self._lines is None:
            path = self.inside(METRICS)
            self._lines = _read(path).count(b"\n") if path.exists() else 0
        return self._lines

    @property
    def _is_sealed(self) -> bool:
        return self.config.get("format", 1) >= _SEALED

    def _sweep(self) -> None:
        """Removes the files that a killed process had not renamed yet, here and in the folders of the run."""
        here = list(os.scandir(self.path))
        below = [entry for each in here if each.is_dir(follow_symlinks=False) for entry in os.scandir(each.path)]
        for entry in [*here, *below]:
            if _HALF_WRITTEN.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(OSError):  # one that cannot be removed does no harm
                    os.unlink(entry.path)


def versions() -> dict[str, str]:
    """The versions that a result depends on."""
    found = {"cdpo": __version__, "python": platform.python_version()}
    for package in ("jax", "jaxlib", "equinox", "optax", "numpy", "scipy", "gymnasium", "mujoco-core"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def keep_programs() -> None:
    """Compiled programs survive the process: the second run of a command starts at once."""
    import jax

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cdpo" / "xla"
    jax.config.update("jax_compilation_cache_dir", str(cache))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def hardware() -> dict[str, Any]:
    """The machine that a result, and above all its time, depends on."""
    import jax  # here, so that reading a run folder does not wait for it

    return {
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "backend": jax.default_backend(),
        "device": jax.devices()[0].device_kind,
        "devices": jax.device_count(),
    }


def _read(path: Path) -> bytes:
    with open_saved(path) as file:
        return file.read()


def _object(path: Path, data: bytes, *, required: bool) -> dict[str, Any]:
    """What a file of one object holds, with a checksum if one is required."""
    try:
        return unsealed(data, required=required)
    except Unsealed as error:
        raise damaged(path, str(error)) from error


def _cut_torn_line(file: Any) -> None:
    """Cuts what follows the last newline, so that the next record does not continue a torn one, and goes there."""
    end = file.seek(0, os.SEEK_END)
    if end == 0:
        return
    file.seek(end - 1)
    if file.read(1) != b"\n":
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
    file.seek(0, os.SEEK_END)


def _cannot_create(path: Path, error: OSError | ValueError) -> UserError:
    reason = getattr(error, "strerror", None) or error
    return UserError(f"cannot create {quoted(path)}: {reason}; choose another folder for the run")
