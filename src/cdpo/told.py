"""Settings as trees: their numbers are values, everything else belongs to the program.

A compiled program is made once for its shapes and words. Another learning rate, another bound of a trust region is
another argument of it: nothing is compiled anew, and seeds that differ in numbers run side by side in one program.
"""

import dataclasses
from typing import Any, ClassVar

import jax


class Told:
    """A base for frozen dataclasses: their fields of type float are leaves, but for those that decide on shapes."""

    _shaping: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, shaping: tuple[str, ...] = (), **rest: Any) -> None:
        """Makes the class known to JAX; the floats named in `shaping` are no leaves."""
        super().__init_subclass__(**rest)
        cls._shaping = cls._shaping + shaping
        jax.tree_util.register_pytree_node(cls, _flatten, lambda fixed, numbers: _unflatten(cls, fixed, numbers))


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
