"""What a reader may answer to files that cdpo did not write: one line of ours, or what they gave undamaged."""

import contextlib
import os
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cdpo.errors import UserError

LIMIT = 10  # seconds


class Slow(BaseException):
    """It took longer than anybody waits."""


@contextlib.contextmanager
def in_time(seconds: float) -> Iterator[None]:
    """Ended if it takes longer."""

    def stop(*_: object) -> None:
        raise Slow

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def limit_memory(more: int) -> None:
    """This process may take so many bytes more than it has, and no others."""
    limit = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE") + more
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def wrong_answer(read: Callable[[], Any], accepted: Callable[[Any], bool], limit: float = LIMIT) -> str | None:
    """What is wrong with what a reader answers, if it is neither accepted nor a mistake told in one line."""
    try:
        with in_time(limit):
            found = read()
    except UserError as error:
        return None if str(error).isprintable() else f"its message is no printable line: {str(error)[:200]!r}"
    except Slow:
        return f"it took longer than {limit:.0f} s"
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return None if accepted(found) else f"it was taken for {repr(found)[:100]}"
