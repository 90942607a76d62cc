"""How values are taken from what a run folder holds, which may be anything that JSON can say."""

from collections.abc import Mapping
from typing import Any, TypeGuard

_LARGEST = 1e30  # beyond, a number has diverged and no axis can show it


def nested(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The dictionary under `key`; an empty one if there is none.

    >>> nested({"rule": {"kl": 0.1}, "preset": "paper"}, "rule"), nested({"preset": "paper"}, "preset")
    ({'kl': 0.1}, {})
    """
    found = values.get(key)
    return found if isinstance(found, dict) else {}


def is_number(value: Any) -> TypeGuard[float]:
    """Whether this is a number that can be shown.

    >>> is_number(1), is_number(True), is_number(float("nan")), is_number(1e300)
    (True, False, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST


def is_count(value: Any) -> TypeGuard[int]:
    """Whether this is a whole number from zero on."""
    return isinstance(value, int) and is_number(value) and value >= 0
