"""A training run on disk: what it was told, what it measured, and where it can go on from.

    config.json                     what the run was told
    metrics.jsonl                   a line for each seed and episode
    events.out.tfevents.*           the same for TensorBoard
    checkpoints/                    where it goes on from (see `checkpoints`)
    summary.json                    what came out, once the run has finished

Nothing is written before the first checkpoint, which is of a run that has not begun: a folder that has none and holds
anything else is damaged.

Order of a commit: the logs are on disk before the state that counts their rows and bytes is renamed into place. A
resumed run cuts every log back to those counts, so that nothing is lost, doubled or torn.
"""

import contextlib
import re
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from cdpo.errors import UserError
from cdpo.files import cut_file, quoted
from cdpo.runs import METRICS, SUMMARY, RunFolder, hardware, versions
from cdpo.signals import shielded
from cdpo.training.checkpoints import BEFORE, FOLDER, POLICY, STATE, go_on, has_state, replay_path
from cdpo.training.config import records_of
from cdpo.training.events import EventWriter
from cdpo.training.log import Log
from cdpo.training.loop import Lived, Record, Trainer, advance_together
from cdpo.training.schema import names
from cdpo.training.store import flatten, save_arrays

PATIENCE = 30.0  # seconds of work that may be lost


class Journal:
    """Keeps a trainer's run in a folder, inside `folder.writing()`."""

    def __init__(self, folder: RunFolder, trainer: Trainer) -> None:
        """Goes on where the folder's last checkpoint is, if it has one."""
        self.folder = folder
        self.trainer = trainer
        self._wall = 0.0
        self._opened = self._saved = time.monotonic()
        self._good: str | None = None  # the file of the last checkpoint, which is known to be whole
        self._written = self._kept = trainer.episode  # episodes in the logs, and in the last checkpoint
        if folder.inside(FOLDER, POLICY).exists():
            raise UserError(f"{quoted(folder.path)} holds policies only, which cannot learn; train from a whole run")
        if has_state(folder):
            self._go_on()
        else:
            self._begin()
        self._logs = [Log(replay_path(folder, pupil.seed), trainer.row_width) for pupil in trainer.pupils]
        self._events = EventWriter(folder.inside(EventWriter.NAME).parent)

    @property
    def wall(self) -> float:
        """Seconds of work so far, those before interruptions included."""
        return self._wall + time.monotonic() - self._opened

    def write(self, lived: Lived) -> None:
        """An episode has ended."""
        self.folder.check_writing()
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
        """The state, after everything that it counts; nothing if there is nothing new, or not all of it was written."""
        if not self._kept < self._written == self.trainer.episode:
            return
        self.folder.check_writing()
        for log in self._logs:
            log.sync()
        metrics = self.folder.inside(METRICS)
        self._save([log.rows for log in self._logs], metrics.stat().st_size, self._events.sync())

    def close(self) -> None:
        """Lets go of the files."""
        for log in self._logs:
            log.close()
        self._events.close()

    def adopt(self, records: list[Record]) -> None:
        """A trainer that has lived elsewhere, with its records."""
        for log, rows in zip(self._logs, self.trainer.rows(), strict=True):
            log.append(rows)
        self.folder.extend(records)
        self._kept = -1
        self.commit()

    def _begin(self) -> None:
        """A first checkpoint, before anything else."""
        folder = self.folder
        found = [name for name in (METRICS, SUMMARY) if folder.inside(name).exists()]
        found += [f"{FOLDER}/{path.name}" for path in sorted(folder.folder(FOLDER).iterdir())]
        if found:
            listed = ", ".join(found[:3]) + (" and more" if len(found) > 3 else "")
            again = f"cdpo resume {shlex.quote(str(folder.path))} --restart"
            raise UserError(
                f"{quoted(folder.path)} has {listed}, and no {FOLDER}/{STATE} to go on from; "
                f"restore that file, or set the others aside and begin anew: {again}"
            )
        if self.trainer.episode == 0:  # one that has lived elsewhere has its checkpoint when it is adopted
            self._save([0 for _ in self.trainer.pupils], 0, 0)

    def _save(self, rows: Sequence[int], metrics: int, events: int) -> None:
        """A checkpoint that counts these rows of each log, and bytes of the others. What was known good is kept."""
        trainer = self.trainer
        meta = {
            "episode": trainer.episode,
            "wall_s": self.wall,
            "metrics": metrics,
            "events": events,
            "pupils": [
                {name: getattr(p, name) for name in ("seed", "steps", "iterations", "evaluated", "stopped")}
                | {"rows": count}
                for p, count in zip(trainer.pupils, rows, strict=True)
            ],
        }
        before = self.folder.file(FOLDER, BEFORE) if self._good == STATE else None
        path = self.folder.file(FOLDER, STATE)
        save_arrays(path, flatten(trainer.minds(), names), meta, before=before)
        self._good = STATE
        self._saved = time.monotonic()
        self._kept = trainer.episode

    def _go_on(self) -> None:
        found = go_on(self.folder, self.trainer)
        records_of(self.folder, found.metrics)  # what is damaged is told before anything is changed
        self.folder.remove_summary()  # of before
        for lane, pupil in enumerate(found.pupils):
            path = replay_path(self.folder, pupil["seed"])
            if not (pupil["rows"] or path.exists()):
                continue
            if Log.is_current(path):
                Log.cut(path, pupil["rows"])
            else:
                Log.rewrite(path, self.trainer.rows()[lane])
        cut_file(self.folder.inside(METRICS), found.metrics)
        cut_file(self.folder.inside(EventWriter.NAME), found.events)
        self._good = found.name
        self._wall = found.wall
        self._written = self._kept = self.trainer.episode


@contextlib.contextmanager
def journal(folder: RunFolder, trainer: Trainer, *, taking_over: bool = False) -> Iterator[Journal]:
    """A journal that commits at the end, also of an interrupted run."""
    with folder.writing(taking_over=taking_over):
        kept = Journal(folder, trainer)
        try:
            yield kept
            with shielded():
                kept.commit()
        except KeyboardInterrupt:
            with shielded():
                kept.commit()
            raise
        finally:
            kept.close()


def set_aside(folder: RunFolder) -> Path:
    """Moves what a run has measured and learned out of the way, so that it begins anew; where to."""
    kept = folder.folder(FOLDER)
    learned = [path.name for path in kept.iterdir() if _LEARNED.fullmatch(path.name)]
    names = [(METRICS,), (SUMMARY,), (EventWriter.NAME,), *((FOLDER, name) for name in sorted(learned))]
    return folder.set_aside(names)


_LEARNED = re.compile(r"state(-before)?\.npz|replay-[0-9]+\.bin")


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

        def keep(lived: Sequence[Lived], level: list[Journal] = level) -> None:
            for run, each in zip(level, lived, strict=True):
                run.write(each)
            if any(run.due for run in level):  # all at once: they should go on together as well
                for run in level:
                    run.commit()

        lived = advance_together([run.trainer for run in level], last=now == episodes, keep=keep)
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
    for record in records_of(folder):
        if record["seed"] in by_seed:
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
