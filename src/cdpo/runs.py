"""Run folders: what a run was told to do, what it measured, and what came out.

A process may be killed at any moment. Whatever stands under its final name is whole; only the last line of
`metrics.jsonl` can be torn, and is then ignored. What was not yet renamed stays under a hidden name until `sweep`.
"""

import contextlib
import json
import math
import os
import platform
import re
import shutil
import threading
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from cdpo.errors import UserError
from cdpo.version import __version__, checked_format

# Of `config.json`, and with it of `metrics.jsonl` and `summary.json`; what is under `checkpoints` has its own.
FORMAT = 1
_HALF_WRITTEN = re.compile(r"\.cdpo-[0-9a-f]{32}\.tmp")  # the names of `_sibling`, and no others

# Threads of one process share a metrics file; processes do not share run folders.
_appending = threading.Lock()


def write_atomic(path: str | Path, data: str | bytes) -> None:
    """Writes `data` so that a crash leaves `path` either as it was or whole, never in between."""
    path = Path(path)
    temporary = _sibling(path)
    try:
        # Not tempfile: its files are private to the user, whatever the umask says.
        with open(temporary, "xb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def check_free(path: str | Path) -> None:
    """Raises the UserError that `RunFolder.create(path, ...)` would raise, and creates nothing."""
    path = Path(path)
    try:
        path.lstat()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise _cannot_create(path, error) from error
    else:
        raise UserError(f"{_quoted(path)} already exists; choose another folder for the run")
    ancestor = next(parent for parent in path.absolute().parents if parent.exists())
    if not os.access(ancestor, os.W_OK | os.X_OK):
        raise UserError(f"cannot create {_quoted(path)}: {_quoted(ancestor)} is not writable; choose another")


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run. Get one by `RunFolder.create` or `RunFolder.open`."""

    path: Path

    @classmethod
    def create(cls, path: str | Path, config: dict[str, Any]) -> "RunFolder":
        """A new run at `path`, which must not exist; its parents are made."""
        path = Path(path)
        check_free(path)
        text = _json({"format": FORMAT, **config}, indent=2)
        # Filled under another name and then renamed, so that a run never exists without its configuration.
        temporary = _sibling(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.mkdir()
            write_atomic(temporary / "config.json", text)
            os.rename(temporary, path)
            _sync_folder(path.parent)
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
            raise UserError(f"{_quoted(path)} is not a run: there is no such folder")
        if not (run.path / "config.json").exists():
            raise UserError(f"{_quoted(path)} is not a run: it has no config.json")
        _ = run.config  # reading it is the check
        return run

    @property
    def config(self) -> dict[str, Any]:
        """What the run was told to do."""
        path = self.path / "config.json"
        config = _read_object(path)
        checked_format(path, config.get("format", 1), FORMAT)  # before 0.2.0 it was not told
        return config

    @property
    def summary(self) -> dict[str, Any]:
        """What came out; a UserError while the run has not finished."""
        if not (self.path / "summary.json").exists():
            raise UserError(f"{_quoted(self.path)} has no summary.json: the run has not finished; run it again")
        return _read_object(self.path / "summary.json")

    @property
    def figures(self) -> Path:
        """The folder of figures, which is made when first asked for."""
        path = self.path / "figures"
        path.mkdir(exist_ok=True)
        return path

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Writes `summary.json` as a whole."""
        write_atomic(self.path / "summary.json", _json(summary, indent=2))

    def append(self, record: dict[str, Any]) -> None:
        """Adds one line to `metrics.jsonl`; it is on the disk when this returns."""
        self.extend([record])

    def extend(self, records: Sequence[dict[str, Any]]) -> None:
        """Adds a line for each record to `metrics.jsonl`; they are on the disk when this returns."""
        lines = "".join(map(_json, records)).encode()
        path = self.path / "metrics.jsonl"
        with _appending:
            is_new = not path.exists()
            with open(path, "ab+") as file:
                _cut_torn_line(file)
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
            if is_new:
                _sync_folder(self.path)

    def records(self) -> list[dict[str, Any]]:
        """Every record of `metrics.jsonl`, less a last line that a crash tore."""
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return []
        *lines, _torn = path.read_bytes().split(b"\n")
        records = []
        for number, line in enumerate(lines, start=1):
            try:
                records.append(json.loads(line))
            except (ValueError, RecursionError) as error:
                if number == len(lines):
                    break
                raise UserError(f"{_quoted(path)} is damaged at line {number}; restore or remove that line") from error
        return records

    def sweep(self) -> None:
        """Removes the files that a killed process had not renamed yet, here and in the folders of the run."""
        for path in [*self.path.glob(".cdpo-*.tmp"), *self.path.glob("*/.cdpo-*.tmp")]:
            if _HALF_WRITTEN.fullmatch(path.name) and path.is_file():
                with contextlib.suppress(OSError):  # one that cannot be removed does no harm
                    path.unlink()


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


def _json(value: dict[str, Any], indent: int | None = None) -> str:
    """Strict JSON with a final newline."""
    return json.dumps(_plain(value), indent=indent, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    """`value` in JSON's own types: arrays become lists, NaN and the infinities null."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # arrays and scalars of NumPy and JAX, without importing either
        return _plain(value.tolist())
    return value  # what JSON does not know either is a TypeError there


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(path) from error
    if not isinstance(value, dict):
        raise _damaged(path)
    return value


def _cut_torn_line(file: Any) -> None:
    """Cuts what follows the last newline, so that the next record does not continue a torn one."""
    end = file.seek(0, os.SEEK_END)
    if end == 0:
        return
    file.seek(end - 1)
    if file.read(1) != b"\n":
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)


def _sibling(path: Path) -> Path:
    """A hidden, unused name in the folder of `path`: the same file system, so that a rename is atomic."""
    return path.parent / f".cdpo-{uuid.uuid4().hex}.tmp"


def _sync_folder(path: Path) -> None:
    """Makes a rename in the folder survive a power cut; only POSIX can open a folder for that."""
    if os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _quoted(path: str | Path) -> str:
    return repr(str(path))  # repr keeps a message on one line, whatever the name holds


def _cannot_create(path: Path, error: OSError) -> UserError:
    return UserError(f"cannot create {_quoted(path)}: {error.strerror or error}; choose another folder for the run")


def _damaged(path: Path) -> UserError:
    return UserError(f"{_quoted(path)} is damaged or cannot be read; restore it, or start the run again elsewhere")
