"""TensorBoard's event files, written without TensorFlow.

A file is a sequence of records (length, checksum of the length, data, checksum of the data), each the protocol buffer
`Event`. Only its fields for a scalar over steps are used, and those few are encoded by hand.
"""

import os
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from cdpo.files import open_saved, write_atomic

_VERSION = b"brain.Event:2"  # the only version there has been; it opens every file


class EventWriter:
    """Appends scalars to the event file of `folder`.

    The file's name is fixed, so that a run which goes on continues its file: after `cdpo.files.cut_file` has
    brought it back to the offset of a checkpoint, its first event is not repeated.
    """

    NAME = "events.out.tfevents.0000000000.cdpo"

    def __init__(self, folder: str | Path, *, wall_time: Callable[[], float] = time.time) -> None:
        self.path = Path(folder) / self.NAME
        self._wall_time = wall_time
        if not self.path.exists() or self.path.stat().st_size == 0:
            write_atomic(self.path, _record(_double(1, wall_time()) + _block(3, _VERSION)))
        self._file = open_saved(self.path, "ab")  # it stays open until `close`

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Adds the `values` by name at `step`, as the float32 that the format has; NaN and infinities are kept."""
        if not values:
            return
        # A value beyond float32 becomes an infinity, not an error in the middle of a run.
        with np.errstate(over="ignore"):
            floats = {tag: float(np.float32(value)) for tag, value in values.items()}
        summary = b"".join(_block(1, _block(1, tag.encode()) + _float(2, value)) for tag, value in floats.items())
        self._file.write(_record(_double(1, self._wall_time()) + _integer(2, step) + _block(5, summary)))

    def sync(self) -> int:
        """Returns when all events are on the disk; the size of the file by then, to which it may be cut later."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Ends the writing; what was not synced is handed to the system, which writes it in its own time."""
        self._file.close()


def crc32c(data: bytes) -> int:
    """The CRC-32C (Castagnoli) of `data`.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _table() -> list[int]:
    """What eight steps of the division by the reversed polynomial make of each byte."""
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _table()


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _masked_crc(length) + data + _masked_crc(data)


def _masked_crc(data: bytes) -> bytes:
    """The CRC as a record holds it: turned and shifted, since CRCs of data that holds its own CRC are poor ones."""
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


# A field of a protocol buffer is its number and wire type in one varint, then its value.


def _varint(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF  # a negative number is written as its 64-bit complement
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _integer(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)


def _block(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _float(field: int, value: float) -> bytes:
    return _varint(field << 3 | 5) + struct.pack("<f", value)
