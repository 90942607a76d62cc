"""Signals that end a process: Ctrl-C, a terminal that closes, a scheduler that wants the machine back."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

ENDING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Ended(KeyboardInterrupt):
    """A signal came; `code` is the exit code that says which."""

    def __init__(self, number: int) -> None:
        """By the signal's number."""
        super().__init__(number)
        self.code = 128 + number


def heed() -> None:
    """From now on each of these signals is an `Ended` in the main thread; what was told to ignore one goes on so."""
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)


@contextlib.contextmanager
def shielded() -> Iterator[None]:
    """What is inside is finished first: of the signals that come meanwhile, the first is handled at the end."""
    if threading.current_thread() is not threading.main_thread():  # signals do not come here
        yield
        return
    came: list[int] = []
    handlers = {number: handler for number in ENDING if callable(handler := signal.getsignal(number))}
    for number in handlers:
        signal.signal(number, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if came:
            handlers[signal.Signals(came[0])](came[0], None)


def _end(number: int, frame: FrameType | None) -> None:
    raise Ended(number)
