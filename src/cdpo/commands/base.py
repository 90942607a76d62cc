"""What commands share."""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Protocol

from cdpo.errors import StorageError
from cdpo.terminal import printable

STOPPED = 3  # the exit code where bad numbers, or a failed environment, ended a seed


class Command(Protocol):
    """What the dispatcher needs."""

    def run(self, words: Sequence[str]) -> int | None:
        """Do it; `words` is the command line as it was typed. The exit code, where it is not 0."""


@contextlib.contextmanager
def explained(go_on: str) -> Iterator[None]:
    """Say, where a signal or the disk ends a run, that nothing finished is lost, and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"interrupted; what has finished is saved, go on with: {go_on}")
        raise
    except OSError as error:
        raise StorageError.of(error, f"what was saved before is whole; mend that, and go on with: {go_on}") from error


def say(line: str) -> None:
    """A line to whoever looks on; whether anybody does makes no difference."""
    with contextlib.suppress(OSError, ValueError):  # a terminal may be gone
        print(printable(line), file=sys.stderr, flush=True)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of equally many cells as lines of text, in columns."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
