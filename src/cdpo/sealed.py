"""JSON as the library keeps it: strict, and with a checksum of its own.

The last entry of an object, `"crc32": "1a2b3c4d"`, is the CRC-32 of all bytes before it, begun with the object's place
in its file: lines that were doubled, lost or exchanged are found as well. Whoever edits a file on purpose writes null
there, which stands for any contents; what an earlier version wrote has no such entry.
"""

import json
import math
import re
import zlib
from pathlib import Path
from typing import Any

_ENTRY = "crc32"
_SEAL = re.compile(rb',?\s*"crc32": (?:"([0-9a-f]{8})"|null)\s*\}\s*\Z')
_LARGE = re.compile(rb"[eE]\+?[0-9]{3}|[0-9]{300}")  # a number that may be beyond what a float holds
_LENGTH = 64  # bytes that a seal takes at most, with its white space


class Unsealed(ValueError):
    """What is no JSON object, or not the one that was written."""


def sealed(value: dict[str, Any], indent: int | None = None, *, place: int = 0) -> str:
    """An object as JSON with its checksum and a final newline: arrays as lists, NaN and the infinities as null."""
    text = json.dumps({**_plain(value), _ENTRY: None}, indent=indent, allow_nan=False) + "\n"  # all ASCII
    seal = _seal(text.encode())
    assert seal is not None
    head, _, tail = text.rpartition("null")
    return f'{head}"{zlib.crc32(text[: seal.start()].encode(), place):08x}"{tail}'


def unsealed(data: bytes, *, required: bool, place: int = 0) -> dict[str, Any]:
    """The object without its checksum; a ValueError for anything that `sealed` did not write.

    If a checksum is not `required`, as of earlier versions, there may be none; one that is there has to be right.
    """
    seal = _seal(data)
    if seal is None and required:
        raise Unsealed("it has no checksum")
    if seal is not None and seal[1] is not None and int(seal[1], 16) != zlib.crc32(data[: seal.start()], place):
        raise Unsealed("its checksum does not match; if you edited it yourself, write null for its crc32")
    try:
        # Numbers that may be too large are rare, and looking at each in Python takes longer than all the rest.
        value = json.loads(data, parse_float=_finite if _LARGE.search(data) else None, parse_constant=_finite)
    except (ValueError, RecursionError) as error:
        raise Unsealed("it is not JSON") from error
    if not isinstance(value, dict):
        raise Unsealed("it is no JSON object")
    value.pop(_ENTRY, None)
    return value


def _seal(data: bytes) -> re.Match[bytes] | None:
    """The last entry, if it is a checksum."""
    return _SEAL.search(data, max(len(data) - _LENGTH, 0))


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no number in JSON")
    return value


def _plain(value: Any) -> Any:
    """`value` in JSON's own types: arrays become lists, NaN and the infinities null."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # arrays and scalars of NumPy and JAX, without importing either
        return _plain(value.tolist())
    return value  # what JSON does not know either is a TypeError there
