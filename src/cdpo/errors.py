"""Errors that are the user's to mend."""

import dataclasses
import difflib
import reprlib
from collections.abc import Iterable
from typing import Any, Literal, get_args, get_origin, get_type_hints

_NAME = 100  # characters of a name by which a like one is searched for


class UserError(Exception):
    """A mistake of the user's: one line that says what is wrong and what to do.

    The command line prints it without a traceback and exits with code 2.
    """


class StorageError(Exception):
    """A file could not be written or read, though nothing is wrong with what was asked: a full disk, a lost network.

    The command line prints it as one line and exits with code 74.
    """

    @classmethod
    def of(cls, error: OSError, advice: str) -> "StorageError":
        """From what the system said."""
        where = f" {str(error.filename)!r}" if error.filename is not None else ""
        return cls(f"cannot write or read{where}: {error.strerror or error}; {advice}")


class _Short(reprlib.Repr):
    """Of bounded length, whatever is to be shown."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxlist, self.maxtuple, self.maxdict = 3, 8, 8, 4
        self.maxstring = self.maxother = 160

    def repr_int(self, x: int, level: int) -> str:
        return (
            repr(x) if abs(x) < 10**40 else f"a number of {x.bit_length()} bits"
        )  # Python refuses to write the longest


_SHORT = _Short()


def shown(value: Any) -> str:
    """A value in a message: printable, on one line and short, whoever made it.

    >>> print(shown("a name" * 100)[-11:], shown([[1, "\\n"]]))
    namea name' [[1, '\\n']]
    """
    return " ".join(_SHORT.repr(value).split())


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a `name` that is none of the `known` ones, with the nearest of them.

    >>> print(unknown("agent", "psrll", ["cdpo", "psrl"]))
    unknown agent 'psrll'; did you mean 'psrl'? (known: cdpo, psrl)
    """
    known = list(known)
    by_lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower()[:_NAME], by_lower, n=1)
    hint = f"; did you mean {by_lower[near[0]]!r}?" if near else ""
    return UserError(f"unknown {kind} {shown(name)}{hint} (known: {', '.join(known) or 'none'})")


def check_choices(settings: Any) -> None:
    """Raises the error for a field of a settings dataclass that is none of the choices its type lists.

    Type checkers see this in a program; a value that comes from elsewhere must not pass for the default.
    """
    hints = get_type_hints(type(settings))
    for field in dataclasses.fields(settings):
        value, hint = getattr(settings, field.name), hints[field.name]
        if get_origin(hint) is Literal and value not in get_args(hint):
            raise unknown(field.name, value if isinstance(value, str) else shown(value), map(str, get_args(hint)))


class Notice(UserWarning):
    """Something that the user should know, in one line; the command line prints it as it is."""
