"""Append-only files of the rows of each seed's transitions."""

import os
import struct
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np

from cdpo.errors import UserError
from cdpo.files import MENDING, cut_file, damaged, open_saved, sync, write_atomic
from cdpo.version import checked_format

_WIDTHS = 1 << 28  # NumPy's records count their bytes in 32 bits


class Log:
    """An append-only file of rows of `width` float32, such as the transitions of one seed.

    A header (magic, version, width and their CRC-32) comes first, then the rows, each with a CRC-32 of itself and of
    its index: a log may therefore be read and cut after any row. What follows the last `sync` may be lost in a crash;
    whoever goes on from a checkpoint cuts the log to the rows which that counted.
    """

    _HEADER = struct.Struct("<8sII")  # followed by the CRC-32 of these
    _MAGIC = b"cdpo-log"
    _VERSION = 2  # in 1 rows of transitions did not end with the number of their episode

    def __init__(self, path: str | Path, width: int) -> None:
        """Opens the log at `path` to go on at its end; a new one is made where there is none."""
        if not 0 < width < _WIDTHS:
            raise ValueError(f"a row holds between 1 and {_WIDTHS - 1} numbers, not {width}")
        path = Path(path)
        if not os.path.lexists(path):
            write_atomic(path, self._header(width))  # never a torn one
        with open_saved(path) as file:
            _, found, size = self._check(path, file)
        _check_width(path, found, width)
        self.rows, rest = divmod(size, _record(width).itemsize)
        if rest:
            raise damaged(path, "it ends in the middle of a row")
        self.width = width
        self._file = open_saved(path, "ab")  # it stays open until `close`

    def append(self, rows: np.ndarray) -> None:
        """Adds `rows`, float32 [n, width]; `sync` puts them on the disk."""
        if rows.dtype != np.float32 or rows.ndim != 2 or rows.shape[1] != self.width:
            raise TypeError(f"rows must be float32 [n, {self.width}], not {rows.dtype} {list(rows.shape)}")
        self._file.write(_records(rows, self.rows).tobytes())
        self.rows += len(rows)

    def sync(self) -> None:
        """Returns when all rows are on the disk."""
        sync(self._file)

    def close(self) -> None:
        """Ends the appending; what was not synced is handed to the system, which writes it in its own time."""
        self._file.close()

    @classmethod
    def read(cls, path: str | Path, rows: int, width: int) -> np.ndarray:
        """The first `rows` rows, float32 [rows, width]; a UserError if there are fewer or any of them is damaged."""
        with open_saved(path) as file:
            _, found, size = cls._check(path, file)
            _check_width(path, found, width)
            content = file.read(_bytes_of_rows(path, rows, width, size))
        records = np.frombuffer(content, _record(width))
        values = np.array(records["row"], np.float32, order="C")
        bad = np.flatnonzero(_crcs(values, 0) != records["crc"])
        if len(bad):
            raise damaged(path, f"the checksum of row {bad[0]} does not match")
        return values

    @classmethod
    def is_current(cls, path: str | Path) -> bool:
        """Whether the log at `path` has the version that is written today; only then can it be gone on with."""
        with open_saved(path) as file:
            return cls._check(path, file)[0] == cls._VERSION

    @classmethod
    def rewrite(cls, path: str | Path, rows: np.ndarray) -> None:
        """Puts a log of `rows`, float32 [n, width], in the place of the one at `path`. Not while that is open."""
        write_atomic(path, cls._header(rows.shape[1]) + _records(rows, 0).tobytes())

    @classmethod
    def cut(cls, path: str | Path, rows: int) -> None:
        """Drops what follows the first `rows` rows; a UserError if there are fewer. Not while the log is open."""
        with open_saved(path) as file:
            _, width, size = cls._check(path, file)
            end = file.tell() + _bytes_of_rows(path, rows, width, size)
        cut_file(path, end)

    @classmethod
    def _header(cls, width: int) -> bytes:
        """Of the newest version."""
        header = cls._HEADER.pack(cls._MAGIC, cls._VERSION, width)
        return header + struct.pack("<I", zlib.crc32(header))

    @classmethod
    def _check(cls, path: str | Path, file: BinaryIO) -> tuple[int, int, int]:
        """Reads the header: the version, the width, and how many bytes follow."""
        header = file.read(cls._HEADER.size)
        checksum = file.read(4)
        if not header.startswith(cls._MAGIC):
            raise UserError(f"{str(path)!r} is not a log of cdpo, or its beginning is damaged; {MENDING}")
        if checksum != struct.pack("<I", zlib.crc32(header)):
            raise damaged(path, "the checksum of its header does not match")
        _, version, width = cls._HEADER.unpack(header)
        version = checked_format(path, version, cls._VERSION)
        if not 0 < width < _WIDTHS:
            raise damaged(path, "its header is not what cdpo writes")
        return version, width, os.fstat(file.fileno()).st_size - file.tell()


def _record(width: int) -> np.dtype:
    return np.dtype([("row", "<f4", (width,)), ("crc", "<u4")])


def _records(rows: np.ndarray, start: int) -> np.ndarray:
    """Rows with their checksums, of which the first has the index `start`."""
    records = np.empty(len(rows), _record(rows.shape[1]))
    records["row"] = rows
    records["crc"] = _crcs(records["row"], start)
    return records


def _check_width(path: str | Path, found: int, width: int) -> None:
    if found != width:
        raise UserError(
            f"{str(path)!r} has rows of {found} numbers, and {width} are needed; use the settings of the run it is from"
        )


def _bytes_of_rows(path: str | Path, rows: int, width: int, size: int) -> int:
    """How many of the `size` bytes after a header the first `rows` rows take; a UserError if there are fewer."""
    if rows < 0:
        raise ValueError(f"cannot take {rows} rows")
    itemsize = _record(width).itemsize
    if rows * itemsize > size:
        raise damaged(path, f"it holds {size // itemsize} of {rows} rows")
    return rows * itemsize


def _crcs(rows: np.ndarray, start: int) -> np.ndarray:
    """The CRC-32 of each row, begun with its index, so that rows which changed places are found too."""
    crcs = (zlib.crc32(row.tobytes(), index & 0xFFFFFFFF) for index, row in enumerate(rows, start))
    return np.fromiter(crcs, np.uint32, len(rows))
