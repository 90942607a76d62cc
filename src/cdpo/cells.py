"""Cells: what a study or a figure is made of. Each is run once, and kept as one record."""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, Self

from cdpo.runs import RunFolder

Records = list[dict[str, Any]]
Progress = Callable[[str, int], Any]  # label and total to an object with `advance(n)` and `done()`


class Cell(Protocol):
    """One simulation, or one training run."""

    @property
    def identity(self) -> dict[str, Any]:
        """What makes two cells the same: a finished cell need not be run again. Its record holds this as well."""

    @property
    def later(self) -> dict[str, Any]:
        """Settings that records of earlier versions do not tell, with what they were then."""

    @classmethod
    def run_all(cls, cells: Sequence[Self], folder: RunFolder, progress: Progress) -> None:
        """Run cells of this kind, and append the record of each to the folder when it and what runs beside it ends."""


Runner = Callable[[Sequence[Cell], RunFolder, Progress], None]  # runs cells of one kind


def run_here(cells: Sequence[Cell], folder: RunFolder, progress: Progress) -> None:
    """In this process."""
    type(cells[0]).run_all(cells, folder, progress)


def complete(
    folder: RunFolder,
    cells: Sequence[Cell],
    progress: Progress,
    wanted: Callable[[Cell], bool] = lambda cell: True,
    run: Runner = run_here,
) -> Records:
    """The records of all cells; those that are wanted and that the folder lacks are run, and kept as they finish."""
    kept = folder.records()
    missing: dict[type[Cell], list[Cell]] = {}
    for cell in cells:
        if wanted(cell) and record_of(cell, kept) is None:
            missing.setdefault(type(cell), []).append(cell)
    for group in missing.values():
        run(group, folder, progress)
    kept = folder.records()
    return [record for cell in cells if (record := record_of(cell, kept)) is not None]


def record_of(cell: Cell, records: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """The cell's record, if it has one."""
    wanted = json.loads(json.dumps(cell.identity))  # as it is when written and read

    def is_its(record: dict[str, Any]) -> bool:
        settings = record.get("settings")
        told = {**record, "settings": {**cell.later, **settings}} if isinstance(settings, dict) else record
        return all(told.get(name) == value for name, value in wanted.items())

    return next((record for record in records if is_its(record)), None)
