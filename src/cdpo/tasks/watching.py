"""A watchdog: an environment that does not answer is told so, instead of being waited for."""

import queue
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium

from cdpo.tasks.base import Environment, Make

_Call = tuple[Callable[[], Any], "queue.SimpleQueue[tuple[Any, BaseException | None]]"]


class Watched(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Resets and steps on a thread of its own, and waits at most so many seconds for each.

    What takes longer is a TimeoutError, then and ever after: the environment is left to its thread, which does not hold
    up the end of the process. A call that never lets go of the interpreter, as a loop in a compiled extension may, also
    stops who would tell the time: that cannot be helped from within the process.
    """

    def __init__(self, env: Environment, seconds: float) -> None:
        """Watches `env`."""
        super().__init__(env)
        self._seconds, self._steps = seconds, 0
        self._silent: str | None = None
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        threading.Thread(target=_serve, args=(self._calls,), daemon=True, name="cdpo environment").start()
        self._dismiss = weakref.finalize(self, self._calls.put, None)
        self._dismiss.atexit = False

    def reset(self, **options: Any) -> Any:
        """As the environment does, in time."""
        self._steps = 0
        return self._answer(partial(self.env.reset, **options), "reset")

    def step(self, action: Any) -> Any:
        """As the environment does, in time."""
        self._steps += 1
        return self._answer(partial(self.env.step, action), f"step {self._steps}")

    def close(self) -> None:
        """Ends the thread; an environment that does not answer is not asked to close either."""
        self._dismiss()
        if self._silent is None:
            super().close()

    def _answer(self, call: Callable[[], Any], what: str) -> Any:
        if self._silent is not None:
            raise TimeoutError(self._silent)
        # One for each call: an answer that comes late, or after an interrupt, is nobody else's.
        answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self._calls.put((call, answers))
        try:
            answer, error = answers.get(timeout=self._seconds)
        except queue.Empty:
            self._silent = f"did not answer within {self._seconds:g} s ({what})"
            raise TimeoutError(self._silent) from None
        if error is not None:
            raise error
        return answer


def _serve(calls: "queue.SimpleQueue[_Call | None]") -> None:
    """Does what it is asked to until there is nobody left to ask. It knows no environment, or none would ever go."""
    while (asked := calls.get()) is not None:
        call, answers = asked
        try:
            answers.put((call(), None))
        except BaseException as error:  # whatever it is belongs to who asked
            answers.put((None, error))
        del asked, call, answers


@dataclass(frozen=True)
class Watching:
    """Has what another makes watched, each reset and step for `seconds`."""

    make: Make
    seconds: float

    def __call__(self, render_mode: str | None = None) -> Environment:
        """A new environment."""
        return Watched(self.make(render_mode), self.seconds)
