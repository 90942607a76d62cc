"""Progress of everything that takes more than a second."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable
from typing import Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from cdpo.terminal import printable

WORTH_A_LINE = 2.0  # seconds: what was quicker leaves no trace


_UNSEEN = OSError, ValueError  # a pipe without a reader, a full disk, a terminal that is gone or closed


class _Console(Console):
    """What is done goes on whether anybody looks on or not."""

    def on_broken_pipe(self) -> None:
        """Rich would end the process."""
        self.quiet = True


class Progress:
    """The display: live bars on a terminal, elsewhere one line for each task that took a while.

    Tasks may follow one another or run at once in several threads.

        with Progress() as progress:
            task = progress.task("chain N=8", total=100)
            for _ in range(100):
                task.advance(note="regret 12.5")
            task.done()

    A task that is not done when the display closes was interrupted: on a terminal its bar stays where it was.
    """

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Shows on `stream` (standard error) and takes durations by `clock`, in seconds."""
        stream = sys.stderr if stream is None else stream
        self._console = _Console(file=stream, highlight=False, emoji=False, soft_wrap=True)
        self._clock = clock
        # One lock for all tasks: a task's state and its bar change together.
        self._lock = threading.RLock()
        self._bars: Bars | None = None
        if stream.isatty() and not self._console.is_dumb_terminal:
            # Standard output goes through the display only if both are the same terminal: piped, it is data.
            self._bars = Bars(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}", markup=False),
                console=self._console,
                redirect_stdout=sys.stdout.isatty(),
            )

    def __enter__(self) -> Self:
        if self._bars:
            with contextlib.suppress(*_UNSEEN):
                self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bars:
            with contextlib.suppress(*_UNSEEN):
                self._bars.stop()

    def task(self, label: str, total: int) -> "Task":
        """A new task of `total` steps, which starts now."""
        return Task(self, label, total)


class Task:
    """One bar of the display. Get one by `Progress.task`."""

    def __init__(self, display: Progress, label: str, total: int) -> None:
        self._display = display
        self._label = printable(label)  # names may be those of a stranger's folder
        self._note = ""
        self._open = True
        self._started = display._clock()
        with display._lock:
            self._bar = display._bars.add_task(self._label, total=total, note="") if display._bars else None

    def advance(self, steps: int = 1, *, note: str | None = None) -> None:
        """`steps` more are done; `note`, if given, replaces the words beside the bar."""
        with self._display._lock:
            if note is not None:
                self._note = printable(note)
            if self._open and self._display._bars and self._bar is not None:
                self._display._bars.update(self._bar, advance=steps, note=self._note)

    def done(self) -> None:
        """The task has finished: its bar goes, and a line stays if it took a while."""
        with self._display._lock:
            if not self._open:
                return
            self._open = False
            if self._display._bars and self._bar is not None:
                self._display._bars.remove_task(self._bar)
            seconds = self._display._clock() - self._started
            if seconds > WORTH_A_LINE:
                note = f" ({self._note})" if self._note else ""
                with contextlib.suppress(*_UNSEEN):
                    self._display._console.print(f"{self._label}: {seconds:.1f} s{note}", markup=False)
