"""What an environment is asked, and what of its answers is taken: it is the user's, and may do anything."""

import contextlib
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from cdpo.errors import UserError
from cdpo.tasks.base import Environment, Task
from cdpo.terminal import printable

_LONGEST = 200  # signs of an error that are told


class BrokenEnvironment(Exception):
    """An environment raised something, or answered what nobody can learn from: one line that can be printed."""


class Step(NamedTuple):
    """What a step led to."""

    observation: np.ndarray  # [d], a copy: some environments write over theirs
    reward: float
    terminated: bool
    truncated: bool


class Missing(gymnasium.Env[Any, Any]):
    """In the place of one that could not be made: it says why when it is asked for anything."""

    def __init__(self, why: str) -> None:
        """For this reason."""
        self._why = why

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """There is nothing to reset."""
        raise BrokenEnvironment(self._why)


def made(task: Task) -> Environment:
    """A new environment, or the shared one."""
    try:
        return task.make()
    except Exception as error:
        return Missing(told(error))


def reset(environment: Environment, task: Task, seed: int) -> np.ndarray:
    """The first observation of an episode, [d]."""
    try:
        answer = environment.reset(seed=seed)
    except Exception as error:
        raise BrokenEnvironment(told(error)) from error
    observation, _ = _parts("reset", answer, ("observation", "info"))
    return _observation("reset", observation, task.observations)


def step(environment: Environment, task: Task, action: np.ndarray) -> Step:
    """What an action leads to, [m] in the environment's units."""
    try:
        answer = environment.step(action)
    except Exception as error:
        raise BrokenEnvironment(told(error)) from error
    observation, reward, terminated, truncated, _ = _parts(
        "step", answer, ("observation", "reward", "terminated", "truncated", "info")
    )
    return Step(
        _observation("step", observation, task.observations),
        _reward(reward),
        _truth("terminated", terminated),
        _truth("truncated", truncated),
    )


def close(environment: Environment) -> None:
    """Lets go of an environment; one that fails at that has done all that was asked of it."""
    with contextlib.suppress(Exception):
        environment.close()


def told(error: BaseException) -> str:
    """An error on one line: printable, and cut where it is long."""
    try:
        said = str(error)[: 10 * _LONGEST]
    except Exception:  # an error may fail to say what it is, too
        said = ""
    kind = "" if isinstance(error, UserError | BrokenEnvironment) else type(error).__name__
    line = " ".join(": ".join(filter(None, (kind, said))).split())
    line = printable(line)
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} ..."


def _parts(whence: str, answer: Any, names: tuple[str, ...]) -> Any:
    if not isinstance(answer, tuple | list):
        given = _shown(answer)
    elif len(answer) != len(names):
        given = f"{len(answer)} values"
    else:
        return answer
    raise BrokenEnvironment(f"{whence} gave {given}, not {', '.join(names[:-1])} and {names[-1]}")


def _observation(whence: str, answer: Any, size: int) -> np.ndarray:
    numbers = _numbers(answer)
    if numbers is None or numbers.shape != (size,):
        raise BrokenEnvironment(f"{whence} gave {_shown(answer)} as its observation, not {size} real numbers in a row")
    return np.array(numbers)


def _reward(answer: Any) -> float:
    numbers = _numbers(answer)
    if numbers is None or numbers.shape != ():
        raise BrokenEnvironment(f"step gave {_shown(answer)} as its reward, not one real number")
    return float(numbers)


def _truth(name: str, answer: Any) -> bool:
    if answer is True or answer is False:
        return answer
    numbers = _numbers(answer)
    if numbers is None or numbers.shape != () or numbers not in (0, 1):
        raise BrokenEnvironment(f"step gave {_shown(answer)} as {name}, not a truth value")
    return bool(numbers)


def _numbers(answer: Any) -> np.ndarray | None:
    """An array of real numbers, or nothing: neither words nor objects nor complex numbers become some."""
    try:
        numbers = np.asarray(answer)
    except Exception:  # a list of unequal lists, or an object that cannot be read
        return None
    return numbers if numbers.dtype.kind in "biuf" else None


def _shown(answer: Any) -> str:
    """What an answer is, in a few words."""
    kind = type(answer).__name__
    if isinstance(answer, np.ndarray):
        said = f"an array of shape {answer.shape} and type {answer.dtype}"
    elif answer is None or isinstance(answer, bool | float | complex | str | np.generic):
        said = f"{answer!r:.40}"
    else:
        said = f"{'an' if kind[:1] in 'aeiouAEIOU' else 'a'} {kind}"
    return told(UserError(said))
