"""Errors that are the user's to mend."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake of the user's: one line that says what is wrong and what to do.

    The command line prints it without a traceback and exits with code 2.
    """


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a `name` that is none of the `known` ones, with the nearest of them.

    >>> print(unknown("agent", "psrll", ["cdpo", "psrl"]))
    unknown agent 'psrll'; did you mean 'psrl'? (known: cdpo, psrl)
    """
    known = list(known)
    by_lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1)
    hint = f"; did you mean {by_lower[near[0]]!r}?" if near else ""
    return UserError(f"unknown {kind} {name!r}{hint} (known: {', '.join(known) or 'none'})")
