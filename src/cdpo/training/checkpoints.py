"""What a run can go on from: the newest checkpoint, and the one before it.

    checkpoints/state.npz           everything learned, at the end of an episode
    checkpoints/state-before.npz    the same at the checkpoint before
    checkpoints/replay-SEED.bin     all real transitions of a seed, in the order they were made
    checkpoints/policy.npz          instead of all these, policies that are to act and nothing else

A checkpoint counts how much of each log belongs to it. Where the newest is damaged, or a log is shorter than it counts,
the one before serves; whoever reads is told.
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from cdpo.dynamics.replay import episodes_of
from cdpo.errors import Notice, UserError
from cdpo.files import Damaged, damaged, quoted
from cdpo.runs import METRICS, RunFolder
from cdpo.terminal import printable
from cdpo.training.config import is_whole
from cdpo.training.events import EventWriter
from cdpo.training.log import Log
from cdpo.training.loop import Record, Trainer
from cdpo.training.schema import names, upgraded
from cdpo.training.store import load_arrays, restore

FOLDER = "checkpoints"
STATE, BEFORE, POLICY = "state.npz", "state-before.npz", "policy.npz"

_MOST = 2**53  # beyond, a count is none
_LONGEST = 1000  # signs of why a seed has stopped

Read = TypeVar("Read")


@dataclass(frozen=True)
class Checkpoint:
    """What one file tells."""

    name: str
    """Of the file."""
    arrays: Mapping[str, np.ndarray]
    """Everything learned, with a leading axis of seeds."""
    episode: int
    """The next one."""
    wall: float
    """Seconds of work so far."""
    metrics: int
    """Bytes of metrics.jsonl."""
    events: int
    """Bytes of the file for TensorBoard."""
    pupils: list[Record]
    """What the host knows of each seed, and the rows of its replay."""


def has_state(folder: RunFolder) -> bool:
    """Whether there is a checkpoint that a run could go on from."""
    found = [folder.file(FOLDER, name).exists() for name in (STATE, BEFORE)]  # both are looked at, before work begins
    return any(found)


def replay_path(folder: RunFolder, seed: int) -> Path:
    """Of a seed's transitions."""
    return folder.file(FOLDER, f"replay-{seed}.bin")


def newest(folder: RunFolder, read: Callable[[Checkpoint], Read]) -> Read:
    """What `read` makes of the newest checkpoint, or of the one before it where a file of the newest is damaged."""
    try:
        return read(read_state(folder, STATE))
    except Damaged as error:
        if not folder.file(FOLDER, BEFORE).exists():
            raise
        try:
            found = read(read_state(folder, BEFORE))
        except Damaged:
            raise error from None
        warnings.warn(Notice(f"the newest checkpoint cannot serve, the one before it does: {error}"), stacklevel=2)
        return found


def read_state(folder: RunFolder, name: str) -> Checkpoint:
    """A checkpoint by the name of its file."""
    arrays, meta = load_arrays(folder.inside(FOLDER, name), upgraded)
    try:
        episode, metrics, events = (_count(meta[each]) for each in ("episode", "metrics", "events"))
        before = {"iterations": max(episode - 1, 0)}  # of a checkpoint from when there was one for each episode
        pupils = [_told(before | pupil) for pupil in meta["pupils"]]
        return Checkpoint(name, arrays, episode, float(meta["wall_s"]), metrics, events, pupils)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise _misfit(folder) from error


def go_on(folder: RunFolder, trainer: Trainer) -> Checkpoint:
    """Puts the newest checkpoint of a run into a fresh trainer of its kind."""

    def read(found: Checkpoint) -> tuple[Checkpoint, Any, list[np.ndarray]]:
        if [pupil["seed"] for pupil in found.pupils] != [pupil.seed for pupil in trainer.pupils]:
            raise _misfit(folder)
        for name, size in ((METRICS, found.metrics), (EventWriter.NAME, found.events)):
            _check_size(folder.inside(name), size)
        rows = [_rows(folder, each, trainer.task.observations, trainer.row_width) for each in found.pupils]
        return found, restore(trainer.minds(), found.arrays, names), rows

    found, minds, rows = newest(folder, read)
    trainer.restore(found.episode, minds, rows, found.pupils)
    return found


def policies(folder: RunFolder) -> tuple[dict[str, np.ndarray], list[Record]]:
    """The arrays of every seed's policy, and of each its last evaluation and why it was stopped."""
    if has_state(folder):
        found = newest(folder, lambda checkpoint: checkpoint)
        mark = "policy."
        arrays = {name.removeprefix(mark): each for name, each in found.arrays.items() if name.startswith(mark)}
        return arrays, [{name: pupil[name] for name in ("evaluated", "stopped")} for pupil in found.pupils]
    path = folder.inside(FOLDER, POLICY)
    if not path.exists():
        raise UserError(f"{quoted(folder.path)} has no checkpoint yet; train it first")
    arrays, meta = load_arrays(path, upgraded)
    evaluated, stopped = (each if isinstance(each := meta.get(name), list) else [] for name in ("evaluated", "stopped"))
    return arrays, [
        {"evaluated": value if isinstance(value, float) else None, "stopped": why if isinstance(why, str) else None}
        for value, why in zip(evaluated, [*stopped, *[None] * len(evaluated)], strict=False)  # once it was not told why
    ]


def _rows(folder: RunFolder, pupil: Record, observations: int, width: int) -> np.ndarray:
    """Of a seed's replay, float32 [n, width]; before the first of them there may be no file."""
    count, path = pupil["rows"], replay_path(folder, pupil["seed"])
    if not count:
        return np.zeros((0, width), np.float32)
    if Log.is_current(path):
        return Log.read(path, count, width)
    rows = Log.read(path, count, width - 1)
    return np.column_stack([rows, episodes_of(rows, observations)])


def _check_size(path: Path, counted: int) -> None:
    size = path.stat().st_size if path.exists() else 0
    if size < counted:
        raise damaged(path, f"it has {size} bytes, and the checkpoint counted {counted}")


def _told(pupil: Any) -> Record:
    evaluated, stopped = pupil["evaluated"], pupil["stopped"]
    return {
        **{name: _count(pupil[name]) for name in ("seed", "steps", "iterations", "rows")},
        "evaluated": None if evaluated is None else float(evaluated),
        "stopped": None if stopped is None else printable(stopped)[:_LONGEST],
    }


def _count(value: Any) -> int:
    if not (is_whole(value) and 0 <= value < _MOST):
        raise ValueError("this counts nothing")
    return value


def _misfit(folder: RunFolder) -> UserError:
    return UserError(f"the checkpoint of {quoted(folder.path)} does not fit its config.json; start it again elsewhere")
