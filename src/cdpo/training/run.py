"""A training run on disk: what it was told, what it measured, and where it can go on from.

    config.json                     what the run was told
    metrics.jsonl                   a line for each seed and episode
    events.out.tfevents.*           the same for TensorBoard
    checkpoints/state.npz           everything learned, at the end of an episode
    checkpoints/replay-SEED.bin     all real transitions of a seed, in the order they were made
    summary.json                    what came out, once the run has finished

Order of a commit: the logs are on disk before the state that counts their rows and bytes is renamed into place. A
resumed run cuts every log back to those counts, so that nothing is lost, doubled or torn.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from cdpo.errors import UserError
from cdpo.runs import RunFolder, hardware, versions
from cdpo.training.events import EventWriter
from cdpo.training.log import Log, cut_file
from cdpo.training.loop import Lived, Record, Trainer, advance_together
from cdpo.training.schema import names, renamed
from cdpo.training.store import flatten, load_arrays, restore, save_arrays

PATIENCE = 30.0  # seconds of work that may be lost
STATE = "state.npz"
POLICY = "policy.npz"


class Journal:
    """Keeps a trainer's run in a folder."""

    def __init__(self, folder: RunFolder, trainer: Trainer) -> None:
        """Goes on where the folder's last checkpoint is, if it has one."""
        self.folder = folder
        self.trainer = trainer
        self._checkpoints = folder.path / "checkpoints"
        self._checkpoints.mkdir(exist_ok=True)
        self._saved = time.monotonic()
        self._wall = 0.0
        self._opened = time.monotonic()
        self._written, self._kept = 0, -1  # episodes in the logs, and in the last checkpoint
        if (self._checkpoints / POLICY).exists():
            raise UserError(f"{str(folder.path)!r} holds policies only, which cannot learn; train from a whole run")
        if (self._checkpoints / STATE).exists():
            self._restore()
        else:
            for path in [*self._checkpoints.glob("*"), *folder.path.glob("events.out.*")]:
                path.unlink()  # of a run that was killed before its first checkpoint
            cut_file(self._metrics, 0)
        self._logs = [Log(self._log_path(pupil.seed), trainer.row_width) for pupil in trainer.pupils]
        self._events = EventWriter(folder.path)

    @property
    def wall(self) -> float:
        """Seconds of work so far, those before interruptions included."""
        return self._wall + time.monotonic() - self._opened

    def write(self, lived: Lived) -> None:
        """An episode has ended."""
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

    @property
    def due(self) -> bool:
        """Whether so much work could be lost that it is time to commit."""
        return time.monotonic() - self._saved >= PATIENCE

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
                {name: getattr(p, name) for name in ("seed", "steps", "iterations", "evaluated", "stopped")}
                | {"rows": log.rows}
                for p, log in zip(trainer.pupils, self._logs, strict=True)
            ],
        }
        save_arrays(self._checkpoints / STATE, flatten(trainer.minds(), names), meta)
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

    def _restore(self) -> None:
        counts = read_checkpoint(self.folder, self.trainer)
        for pupil in counts["pupils"]:
            Log.cut(self._log_path(pupil["seed"]), pupil["rows"])
        cut_file(self._metrics, counts["metrics"])
        cut_file(self.folder.path / EventWriter.NAME, counts["events"])
        self._wall = counts["wall_s"]
        self._written = self._kept = self.trainer.episode

    def adopt(self, records: list[Record]) -> None:
        """A trainer that has lived elsewhere, with its records."""
        for log, rows in zip(self._logs, self.trainer.rows(), strict=True):
            log.append(rows)
        self.folder.extend(records)
        self._written = self.trainer.episode
        self.commit()


def read_checkpoint(folder: RunFolder, trainer: Trainer) -> dict[str, Any]:
    """Puts the state of a run into a fresh trainer of its kind; returns what the checkpoint counts."""
    path = folder.path / "checkpoints"
    arrays, meta = load_arrays(path / STATE, renamed)
    misfit = UserError(f"the checkpoint of {str(folder.path)!r} does not fit its config.json; start it again elsewhere")
    try:
        episode, wall = int(meta["episode"]), float(meta["wall_s"])
        before = {"iterations": max(episode - 1, 0)}  # of a checkpoint from when there was one for each episode
        pupils = [_told(before | pupil) for pupil in meta["pupils"]]
        counts = {"metrics": int(meta["metrics"]), "events": int(meta["events"]), "pupils": pupils, "wall_s": wall}
    except (KeyError, TypeError, ValueError) as error:
        raise misfit from error
    if [pupil["seed"] for pupil in pupils] != [pupil.seed for pupil in trainer.pupils]:
        raise misfit
    minds = restore(trainer.minds(), arrays, names)
    width = trainer.row_width
    rows = [Log.read(path / f"replay-{pupil['seed']}.bin", pupil["rows"], width) for pupil in pupils]
    trainer.restore(episode, minds, rows, pupils)
    return counts


def _told(pupil: Any) -> Record:
    evaluated, stopped = pupil["evaluated"], pupil["stopped"]
    return {
        **{name: int(pupil[name]) for name in ("seed", "steps", "iterations", "rows")},
        "evaluated": None if evaluated is None else float(evaluated),
        "stopped": None if stopped is None else str(stopped),
    }


@contextlib.contextmanager
def journal(folder: RunFolder, trainer: Trainer) -> Iterator[Journal]:
    """A journal that commits at the end, also of an interrupted run."""
    kept = Journal(folder, trainer)
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
    return train_together([kept], episodes, report)[0]


def train_together(
    runs: Sequence[Journal], episodes: int, report: Callable[[list[Record]], None]
) -> list[dict[str, Any]]:
    """Train runs of one program side by side; those that are behind, after an interruption, catch up first."""
    while going := [run for run in runs if run.trainer.episode <= episodes and run.trainer.going]:
        now = min(run.trainer.episode for run in going)
        level = [run for run in going if run.trainer.episode == now]
        lived = advance_together([run.trainer for run in level], last=now == episodes)
        for run, each in zip(level, lived, strict=True):
            run.write(each)
        if any(run.due for run in level):  # all at once: they should go on together as well
            for run in level:
                run.commit()
        report([record for each in lived for record in each.records])
    summaries = []
    for run in runs:
        run.commit()
        summaries.append(summarise(run.folder, run.trainer, run.wall))
        run.folder.write_summary(summaries[-1])
    return summaries


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


def returns_note(records: Sequence[Record]) -> str:
    """The last returns in a few words, for progress."""
    shown = [record["return"] if record["eval_return"] is None else record["eval_return"] for record in records]
    return "returns " + " ".join(f"{value:.0f}" for value in shown[:8])
