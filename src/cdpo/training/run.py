"""A training run on disk: what it was told, what it measured, and where it can go on from.

    config.json                     what the run was told
    metrics.jsonl                   a line for each seed and episode
    events.out.tfevents.*           the same for TensorBoard
    checkpoints/state.npz           everything learned, at the end of an iteration
    checkpoints/replay-SEED.bin     all real transitions of a seed, in the order they were made
    summary.json                    what came out, once the run has finished

Order of a commit: the logs are on disk before the state that counts their rows and bytes is renamed into place. A
resumed run cuts every log back to those counts, so that nothing is lost, doubled or torn.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cdpo.errors import UserError
from cdpo.runs import RunFolder, hardware, versions
from cdpo.training.events import EventWriter
from cdpo.training.loop import Lived, Record, Trainer
from cdpo.training.store import Log, cut_file, flatten, load_arrays, restore, save_arrays

_STATE = "state.npz"


class Journal:
    """Keeps a trainer's run in a folder."""

    def __init__(self, folder: RunFolder, trainer: Trainer, *, patience: float = 30.0) -> None:
        """At most `patience` seconds of work may be lost; 0 keeps every iteration."""
        self.folder = folder
        self.trainer = trainer
        self.patience = patience
        self._checkpoints = folder.path / "checkpoints"
        self._checkpoints.mkdir(exist_ok=True)
        self._saved = time.monotonic()
        self._wall = 0.0
        self._opened = time.monotonic()
        self._written = self._kept = 0  # episodes in the logs, and in the last checkpoint
        width = 2 * trainer.task.observations + trainer.task.actions + 2
        if self.has_checkpoint:
            self._restore(width)
        else:
            for path in [*self._checkpoints.glob("*"), *folder.path.glob("events.out.*")]:
                path.unlink()  # of a run that was killed before its first checkpoint
            cut_file(self._metrics, 0)
        self._logs = [Log(self._log_path(pupil.seed), width) for pupil in trainer.pupils]
        self._events = EventWriter(folder.path)

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is something to go on from."""
        return (self._checkpoints / _STATE).exists()

    @property
    def wall(self) -> float:
        """Seconds of work so far, those before interruptions included."""
        return self._wall + time.monotonic() - self._opened

    def write(self, lived: Lived) -> None:
        """An iteration has ended."""
        wall = round(self.wall, 3)
        records = [{**record, "wall_s": wall} for record in lived.records]
        for log, rows in zip(self._logs, lived.rows, strict=True):
            if rows is not None:
                log.append(rows)
        self.folder.extend(records)
        for record in records:
            numbers = {name: value for name, value in record.items() if isinstance(value, int | float)}
            tagged = {f"seed {record['seed']}/{name}": float(value) for name, value in numbers.items()}
            self._events.scalars(record["env_steps"], tagged)
        self._written = self.trainer.episode
        if time.monotonic() - self._saved >= self.patience:
            self.commit()

    def commit(self) -> None:
        """The state, after everything that it counts; nothing if an interrupt left the logs behind the trainer."""
        if not self._kept < self._written == self.trainer.episode:
            return
        for log in self._logs:
            log.sync()
        trainer = self.trainer
        meta = {
            "episode": trainer.episode,
            "wall_s": self.wall,
            "metrics": self._metrics.stat().st_size if self._metrics.exists() else 0,
            "events": self._events.sync(),
            "pupils": [
                {"seed": p.seed, "steps": p.steps, "rows": log.rows, "evaluated": p.evaluated, "stopped": p.stopped}
                for p, log in zip(trainer.pupils, self._logs, strict=True)
            ],
        }
        save_arrays(self._checkpoints / _STATE, flatten(trainer.minds()), meta)
        self._saved = time.monotonic()
        self._kept = trainer.episode

    def close(self) -> None:
        """Lets go of the files."""
        for log in self._logs:
            log.close()
        self._events.close()

    @property
    def _metrics(self) -> Path:
        return self.folder.path / "metrics.jsonl"

    def _log_path(self, seed: int) -> Path:
        return self._checkpoints / f"replay-{seed}.bin"

    def _restore(self, width: int) -> None:
        arrays, meta = load_arrays(self._checkpoints / _STATE)
        minds = restore(self.trainer.minds(), arrays)
        try:
            pupils = {int(pupil["seed"]): pupil for pupil in meta["pupils"]}
            if list(pupils) != [pupil.seed for pupil in self.trainer.pupils]:
                raise UserError(f"{str(self.folder.path)!r} holds other seeds than its config.json says; start it anew")
            rows = []
            for seed, pupil in pupils.items():
                Log.cut(self._log_path(seed), pupil["rows"])
                rows.append(Log.read(self._log_path(seed), pupil["rows"], width))
            cut_file(self._metrics, meta["metrics"])
            cut_file(self.folder.path / EventWriter.NAME, meta["events"])
            self.trainer.restore(meta["episode"], minds, rows, list(pupils.values()))
            self._wall = float(meta["wall_s"])
            self._written = self._kept = meta["episode"]
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"the checkpoint of {str(self.folder.path)!r} is of another kind of run") from error


@contextlib.contextmanager
def journal(folder: RunFolder, trainer: Trainer, *, patience: float = 30.0) -> Iterator[Journal]:
    """A journal that commits at the end, also of an interrupted run."""
    kept = Journal(folder, trainer, patience=patience)
    try:
        yield kept
        kept.commit()
    except KeyboardInterrupt:
        kept.commit()
        raise
    finally:
        kept.close()


def train(
    kept: Journal, episodes: int, report: Callable[[list[Record]], None] = lambda records: None
) -> dict[str, Any]:
    """Train until there were episodes 0 to `episodes`, and write the summary."""
    trainer = kept.trainer
    while trainer.episode <= episodes and trainer.going:
        lived = trainer.advance(last=trainer.episode == episodes)
        kept.write(lived)
        report(lived.records)
    kept.commit()
    summary = summarise(kept.folder, trainer, kept.wall)
    kept.folder.write_summary(summary)
    return summary


def summarise(folder: RunFolder, trainer: Trainer, wall: float) -> dict[str, Any]:
    """`summary.json`."""
    by_seed: dict[int, list[Record]] = {pupil.seed: [] for pupil in trainer.pupils}
    for record in folder.records():
        by_seed[record["seed"]].append(record)
    return {
        "seeds": list(by_seed),
        "returns": [[record["return"] for record in records] for records in by_seed.values()],
        "eval_returns": [
            [record["eval_return"] for record in records if record["eval_return"] is not None]
            for records in by_seed.values()
        ],
        "env_steps": [pupil.steps for pupil in trainer.pupils],
        "stopped": {str(pupil.seed): pupil.stopped for pupil in trainer.pupils if pupil.stopped is not None},
        "settings": trainer.settings.to_json(),
        "versions": versions(),
        "hardware": hardware(),
        "wall_s": round(wall, 2),
    }
