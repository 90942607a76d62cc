"""The version of the library, which files and the command line tell, and those of the formats of its files."""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from cdpo.errors import UserError, shown

try:
    __version__ = version("cdpo")
except PackageNotFoundError:  # run from the sources, without an install
    __version__ = "0+unknown"


def checked_format(path: str | Path, told: Any, newest: int) -> int:
    """The version of the format that a file tells; a UserError for one that this library does not read.

    Each format counts for itself, from 1 on, and is read in every version so far.
    """
    if not isinstance(told, int) or isinstance(told, bool) or told < 1:
        raise UserError(f"{str(path)!r} is damaged (its format is {shown(told)}); restore a copy of it")
    if told > newest:
        raise UserError(
            f"{str(path)!r} has format {shown(told)}, and this cdpo reads up to {newest}; install a newer cdpo"
        )
    return told
