"""What commands share."""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Protocol


class Command(Protocol):
    """What the dispatcher needs."""

    def run(self, words: Sequence[str]) -> int | None:
        """Do it; `words` is the command line as it was typed. The exit code, where it is not 0."""


@contextlib.contextmanager
def explained(go_on: str) -> Iterator[None]:
    """Say on Ctrl-C that nothing finished is lost, and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"interrupted; what has finished is kept, go on with: {go_on}", file=sys.stderr)
        raise


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of equally many cells as lines of text, in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
