"""Settings as trees: their numbers are values, everything else belongs to the program.

A compiled program is made once for its shapes and words. Another learning rate, another bound of a trust region is
another argument of it: nothing is compiled anew, and seeds that differ in numbers run side by side in one program.
"""

import dataclasses
from collections.abc import Mapping
from types import UnionType
from typing import Any, ClassVar, get_args, get_type_hints

import jax
import numpy as np

from cdpo.errors import UserError, check_choices, shown, unknown

MOST = 10**6  # of what is counted: beyond are slips of the keyboard, and arrays that fit nowhere
LARGEST = 1e30  # settings become 32-bit floats
_LAYERS = 64  # in a row, each of which makes programs longer
_LISTED = 1000
_LETTERS = 1000
_WHOLE = 2**63


class Told:
    """A base for frozen dataclasses: their fields of type float are leaves, but for those that decide on shapes.

    Whole numbers are at least one and at most a million, others above zero if given, but for those that may be zero;
    shares are at most one. Sizes of layers are no more than 64.
    """

    part: ClassVar[str]
    """The name of the settings."""
    _shaping: ClassVar[tuple[str, ...]] = ()
    _zero: ClassVar[tuple[str, ...]] = ()
    _shares: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(
        cls, shaping: tuple[str, ...] = (), zero: tuple[str, ...] = (), shares: tuple[str, ...] = (), **rest: Any
    ) -> None:
        """Makes the class known to JAX; the floats named in `shaping` are no leaves, those in `zero` may be zero."""
        super().__init_subclass__(**rest)
        for name, new in (("_shaping", shaping), ("_zero", zero), ("_shares", shares)):
            inherited = (each for base in cls.__bases__ for each in getattr(base, name, ()))
            setattr(cls, name, (*dict.fromkeys((*inherited, *new)),))
        jax.tree_util.register_pytree_node(cls, _flatten, lambda fixed, numbers: _unflatten(cls, fixed, numbers))

    def __post_init__(self) -> None:
        """Reject words that are no choices, and numbers outside their range."""
        check_choices(self)
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if (asked := self._asked(field, value)) is not None:
                told = f"{value:g}" if isinstance(value, float) else shown(value)
                raise UserError(f"{self.part}.{field.name} must {asked}, not {told}")

    def _asked(self, field: dataclasses.Field[Any], value: Any) -> str | None:
        """What is asked of a field, if its value is not that."""
        if value is None:
            return None
        if field.type in (int, int | None):
            least = 0 if field.name in self._zero else 1
            if value > MOST:
                return f"be at most {MOST}"
            return None if value >= least else f"be at least {least}"
        if field.type == tuple[int, ...]:
            if len(value) > _LAYERS:
                return f"hold at most {_LAYERS} sizes"
            return None if all(1 <= size <= MOST for size in value) else f"hold sizes of at least 1 and at most {MOST}"
        if field.type not in (float, float | None):
            return None
        if not abs(value) <= LARGEST:
            return "be a finite number"
        zero, share = field.name in self._zero, field.name in self._shares
        inside = (value >= 0 if zero else value > 0) and (value <= 1 or not share)
        if share:
            asked = "be between 0 and 1" if zero else "be in (0, 1]"
        else:
            asked = "not be negative" if zero else "be above 0"
        return None if inside else asked


def _flatten(told: Any) -> tuple[tuple[Any, ...], tuple[tuple[str, Any], ...]]:
    values = [(field, getattr(told, field.name)) for field in dataclasses.fields(told)]
    numbers = tuple(value for field, value in values if _is_leaf(told, field))
    return numbers, tuple((field.name, value) for field, value in values if not _is_leaf(told, field))


def _unflatten(cls: type, fixed: tuple[tuple[str, Any], ...], numbers: tuple[Any, ...]) -> Any:
    """Without the checks of the constructor: numbers may be traced."""
    told: Any = object.__new__(cls)
    names = [field.name for field in dataclasses.fields(cls) if _is_leaf(cls, field)]
    for name, value in (*fixed, *zip(names, numbers, strict=True)):
        object.__setattr__(told, name, value)
    return told


def _is_leaf(told: Any, field: dataclasses.Field[Any]) -> bool:
    return field.type is float and field.name not in told._shaping


def changed(part: str, old: Any, changes: Mapping[str, Any]) -> Any:
    """A dataclass of settings with other values; names that it has not and values of other types are UserErrors.

    Values may be as JSON has them: lists for tuples, and a dictionary for settings within settings.
    """
    hints = get_type_hints(type(old))
    known = [field.name for field in dataclasses.fields(old)]
    values = {}
    for name, value in changes.items():
        if name not in known:
            raise unknown(f"setting of {part}", name, known)
        inner = getattr(old, name)
        if dataclasses.is_dataclass(inner) and isinstance(value, Mapping):
            values[name] = changed(name, inner, value)
        else:
            values[name] = _fitting(f"{part}.{name}", value, hints[name])
    return dataclasses.replace(old, **values)


def _fitting(name: str, value: Any, hint: Any) -> Any:
    """A value of the type that is asked for; words are left to `check_choices`."""
    value = value.item() if isinstance(value, np.generic) else value
    for kind, asked in ((int, "whole numbers"), (str, "words")):
        if hint == tuple[kind, ...]:  # type: ignore[valid-type]
            if not (isinstance(value, list | tuple) and all(_fits(each, kind) for each in value)):
                raise UserError(f"{name} must be {asked} in a list, not {shown(value)}")
            if len(value) > _LISTED:
                raise UserError(f"{name} must hold at most {_LISTED} {asked}, not {len(value)}")
            return tuple(_bounded(name, each) for each in value)
    kind, *none = get_args(hint) if isinstance(hint, UnionType) else [hint]
    checked = kind in (int, float, bool, str) or dataclasses.is_dataclass(kind)
    if checked and not (_fits(value, kind) or (none and value is None)):
        raise UserError(f"{name} must be of type {kind.__name__}, not {shown(value)}")
    if kind is float and value is not None and not abs(value) <= LARGEST:
        raise UserError(f"{name} must be a finite number, not {shown(value)}")
    return _bounded(name, value)


def _bounded(name: str, value: Any) -> Any:
    """Neither a word nor a whole number that nobody would have written."""
    if isinstance(value, str) and len(value) > _LETTERS:
        raise UserError(f"{name} must have at most {_LETTERS} letters, not {len(value)}")
    if isinstance(value, int) and abs(value) >= _WHOLE:
        raise UserError(f"{name} must be a whole number of less than 64 bits, not {shown(value)}")
    return value


def _fits(value: Any, kind: type) -> bool:
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, kind) or (kind is float and isinstance(value, int))
