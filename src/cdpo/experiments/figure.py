"""What a reproduction is: cells to run, and a drawing of their records."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cdpo.cells import Cell, Records

Scale = Literal["smoke", "quick", "paper"]


@dataclass(frozen=True)
class Figure:
    """A figure of the paper, or a study beside it.

    `cells(scale)` are the simulations or training runs behind it, `draw(records, folder)` makes it from their records
    and returns the files.
    """

    paper: str  # where the paper has it
    shows: str  # what is seen
    cells: Callable[[Scale], Sequence[Cell]]
    draw: Callable[[Records, Path], list[Path]]


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
