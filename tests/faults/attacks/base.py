"""What attacks share: what one is, processes of their own, and what a command may answer."""

import io
import os
import select
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NoReturn, Protocol

MISTAKE, FAULT = 2, 74  # exit codes: the user's mistake, and an error of the system's
PATIENCE = 60.0  # seconds after which a process hangs


class Attack(Protocol):
    """One kind of attack, made in a folder where it keeps what its trials share."""

    whole: ClassVar[int]
    """Trials of a whole run."""

    def __init__(self, home: Path) -> None: ...

    def trial(self, seed: int, folder: Path) -> str | None:
        """Attack once, in an empty folder; what failed, in a line."""


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit code, or less the signal, and what it said."""

    code: int
    out: str
    err: str

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL

    @property
    def in_one_line(self) -> bool:
        """Whether its last words are one line of ours, and there is no traceback before."""
        *_, last = self.err.splitlines() or [""]
        return last.startswith("cdpo: ") and last.isprintable() and "Traceback" not in self.err

    def __str__(self) -> str:
        *_, last = self.err.strip().splitlines() or ["nothing"]
        return f"exit code {self.code}, saying {last[:200]!r}"


class Child:
    """A process that does some work beside this one, as a fork of it."""

    def __init__(self, work: Callable[[], int | None], out: int | None = None) -> None:
        """`out` is its standard output, if that is not to be kept."""
        self._said = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115 - they are read at the end
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # JAX warns of forks; these do not compute with it if we did
            self.pid = os.fork()
        if not self.pid:
            _work(work, self._said[0].fileno() if out is None else out, self._said[1].fileno())
        self._ended = os.pidfd_open(self.pid)

    def alive(self, seconds: float = 0.0) -> bool:
        """Whether it still is after so long, or before."""
        return not select.select([self._ended], [], [], seconds)[0]

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self, seconds: float = PATIENCE) -> Ended:
        """Its end, which is made if it does not come."""
        hung = self.alive(seconds)
        if hung:
            self.kill()
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self._ended)
        out, err = (_content(file) for file in self._said)
        return Ended(code, out, err + ("\nit hung" if hung else ""))


def _work(work: Callable[[], int | None], out: int, err: int) -> NoReturn:
    """In the child, which never comes back from here."""
    code: int | None = 1
    try:
        os.dup2(out, 1)
        os.dup2(err, 2)
        sys.stdout, sys.stderr = (io.TextIOWrapper(io.FileIO(fd, "w"), write_through=True) for fd in (1, 2))
        code = work()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code or 0)


def _content(file: "tempfile._TemporaryFileWrapper[bytes]") -> str:
    with file:
        file.seek(0)
        return file.read().decode(errors="replace")


def run(work: Callable[[], int | None], seconds: float = PATIENCE) -> Ended:
    """Work in a process of its own, to its end."""
    return Child(work).wait(seconds)
