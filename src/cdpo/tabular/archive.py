"""Arrays from an .npz file that anybody may have made: what it declares is checked before anything is unpacked."""

import math
import os
import zipfile
from pathlib import Path
from typing import BinaryIO

import numpy as np

from cdpo.errors import UserError, shown
from cdpo.terminal import printable

MOST_BYTES = 2**30  # of all arrays of a file, unpacked
_LONGEST = 10_000  # characters of a header
_ENCRYPTED = 1


def read_arrays(path: str | Path, known: frozenset[str], most: int) -> dict[str, np.ndarray]:
    """The arrays of a file, each of the `known` names and of at most so many numbers; a UserError for anything else.

    No pickle is loaded, and no array may be larger than its header says: four megabytes can unpack to four gigabytes.
    """
    try:
        with _opened(path) as file, zipfile.ZipFile(file) as archive:
            members = _members(archive, known)
            for name, info in members.items():
                _check_declared(archive, name, info, most)
            return {name: _read(archive, info) for name, info in members.items()}
    except UserError as error:
        raise UserError(f"{printable(path)} {error}") from None
    except Exception as error:  # on bytes made up to confuse them, zipfile, zlib and NumPy raise a dozen kinds
        raise UserError(f"{printable(path)} is not a readable .npz file of arrays: {_reason(error)}") from None


def _opened(path: str | Path) -> BinaryIO:
    if not os.path.isfile(path):  # a pipe would be waited for
        raise ValueError("there is no such file")
    file = open(path, "rb")  # noqa: SIM115 - the caller closes it
    if os.fstat(file.fileno()).st_size > 2 * MOST_BYTES:
        file.close()
        raise ValueError("it is too large")
    return file


def _members(archive: zipfile.ZipFile, known: frozenset[str]) -> dict[str, zipfile.ZipInfo]:
    """By the names of their arrays, all together no larger than may be."""
    members: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        name = info.filename.removesuffix(".npy")
        if name not in known:
            raise UserError(f"has an unknown array {shown(name)} (known: {', '.join(sorted(known))})")
        if name in members:
            raise UserError(f"has two arrays {name!r}; save it again")
        if info.flag_bits & _ENCRYPTED or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise UserError(f"has an array {name!r} that NumPy has not packed; save it by numpy.savez")
        members[name] = info
    total = sum(info.file_size for info in members.values())
    if total > MOST_BYTES:
        raise UserError(f"would unpack to {total / 2**30:.1f} GiB; {MOST_BYTES // 2**30} GiB can be read")
    return members


def _check_declared(archive: zipfile.ZipFile, name: str, info: zipfile.ZipInfo, most: int) -> None:
    """The header's shape and dtype against the size that the archive declares; no more than the header is unpacked."""
    with archive.open(info) as member:
        if np.lib.format.read_magic(member) != (1, 0):
            raise ValueError(f"{name!r} is no plain array")
        shape, _, dtype = np.lib.format.read_array_header_1_0(member, max_header_size=_LONGEST)
        header = member.tell()
    if dtype.kind not in "biufU":  # words are told to be none where the numbers are asked for
        raise ValueError(f"{name!r} holds no numbers")
    if any(length < 0 for length in shape) or math.prod(shape) > most:
        raise UserError(f"has an array {name!r} of shape {shown(list(shape))}; it may hold at most {most} numbers")
    if header + math.prod(shape) * dtype.itemsize != info.file_size:
        raise ValueError(f"{name!r} has another size than it declares")


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(info) as member:
        return np.lib.format.read_array(member, allow_pickle=False, max_header_size=_LONGEST)


def _reason(error: Exception) -> str:
    """In words, on one line."""
    words = " ".join(str(error).split())[:200]
    return words if words.isprintable() and words else type(error).__name__
