"""Files that a run has saved: opening them, putting them on the disk, and saying what is wrong with them."""

import os
from pathlib import Path
from typing import Any, BinaryIO

from cdpo.errors import UserError

MENDING = "restore a copy of it, or start the run again elsewhere"


def open_saved(path: str | Path, mode: str = "rb") -> Any:
    """Opens a file that has to be there; a UserError if it cannot be."""
    path = Path(path)
    if path.is_dir():
        raise UserError(f"{str(path)!r} is a folder; name a file in it")
    if path.exists() and not path.is_file():  # opening a pipe would wait for its other end
        raise UserError(f"{str(path)!r} is not a regular file; name one that cdpo saved")
    try:
        return open(path, mode)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UserError(f"{str(path)!r} does not exist; name a file that cdpo saved") from error
    except (OSError, ValueError) as error:  # a ValueError for a name with a null character
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot open {str(path)!r}: {reason}; check its name and permissions") from error


def sync(file: BinaryIO) -> None:
    """Returns when what was written is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def damaged(path: str | Path, why: str) -> UserError:
    """The error for a file that is not as it was written."""
    return UserError(f"{str(path)!r} is damaged ({why}); {MENDING}")
