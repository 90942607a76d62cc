"""What a reproduction is: cells to run, and a drawing of their records."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cdpo.tabular.study import Cell

Scale = Literal["smoke", "quick", "paper"]
Records = list[dict[str, Any]]


@dataclass(frozen=True)
class Figure:
    """A figure of the paper, or a study beside it.

    `cells(scale)` are the simulations behind it, `draw(records, folder)` makes it from their records and returns the
    files. A figure without cells is not made by this version.
    """

    paper: str  # where the paper has it
    shows: str  # what is seen
    cells: Callable[[Scale], Sequence[Cell]] | None = None
    draw: Callable[[Records, Path], list[Path]] | None = None


@dataclass(frozen=True)
class Budget:
    """How much is spent at a scale."""

    seeds: int
    steps: int  # for each state


BUDGETS: dict[Scale, Budget] = {
    "smoke": Budget(seeds=4, steps=40),
    "quick": Budget(seeds=8, steps=250),
    "paper": Budget(seeds=10, steps=1250),
}
