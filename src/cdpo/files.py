"""Files on the disk: opened only if they are what they should be, written whole or not at all.

A folder may be a stranger's. What is in it may be no link, which would lead to another's files, and no pipe, device or
socket, which would wait or act when it is opened; nor is a file changed in place that has a second name elsewhere.
"""

import contextlib
import os
import stat
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

from cdpo.errors import UserError

MENDING = "restore a copy of it, or start the run again elsewhere"
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # a system without these has no pipes in folders


class Damaged(UserError):
    """A file is not as it was written, or no longer there."""


def damaged(path: str | Path, why: str) -> Damaged:
    """The error for a file that is not as it was written."""
    return Damaged(f"{quoted(path)} is damaged ({why}); {MENDING}")


def quoted(path: str | Path) -> str:
    """A path for a message: on one line, whatever the name holds."""
    return repr(str(path))


def inside(root: Path, names: Iterable[str]) -> Path:
    """The path of something below `root`, there already or not; a UserError if links or no files are on the way."""
    path = root
    for name in names:
        if name in ("", os.curdir, os.pardir) or any(sign in name for sign in ("/", os.sep, "\0")):
            raise UserError(f"{name!r} is no name of a file in {quoted(root)}; restore what names it")
        path = path / name
        _check_kind(path)
    return path


def open_saved(path: str | Path, mode: str = "rb") -> Any:
    """Opens a file that has to be there; a UserError if it cannot be."""
    path = Path(path)
    if _check_kind(path) == stat.S_IFDIR:
        raise UserError(f"{quoted(path)} is a folder; name a file in it")
    try:
        file = open(path, mode, opener=lambda name, flags: os.open(name, flags | _NO_LINK))  # noqa: SIM115
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Damaged(f"{quoted(path)} does not exist; name a file that cdpo saved") from error
    except (PermissionError, ValueError) as error:  # a ValueError for a name with a null character
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot open {quoted(path)}: {reason}; check its name and permissions") from error
    found = os.fstat(file.fileno())
    changes = not mode.startswith("r") or "+" in mode
    if stat.S_ISREG(found.st_mode) and not (changes and found.st_nlink > 1):
        return file
    file.close()
    if not stat.S_ISREG(found.st_mode):
        raise UserError(f"{quoted(path)} is not a regular file; name one that cdpo saved")
    raise UserError(f"{quoted(path)} has a second name, whose file would change as well; put a copy in its place")


def write_atomic(path: str | Path, data: str | bytes, *, before: Path | None = None) -> None:
    """Writes `data` so that a crash leaves `path` either as it was or whole, never in between.

    What was there until then is kept under the name `before`, if one is given; a crash may leave that alone.
    """
    path = Path(path)
    temporary = sibling(path)
    try:
        # Not tempfile: its files are private to the user, whatever the umask says.
        with open(temporary, "xb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            sync(file)
        if before is not None and path.exists():
            os.replace(path, before)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):  # the disk may be gone: what is left is swept by the next who writes there
            temporary.unlink()
        raise
    sync_folder(path.parent)


def cut_file(path: str | Path, size: int) -> None:
    """Cuts a log back to the `size` that a checkpoint recorded; a UserError if it is shorter.

    A log that has not been begun, and of which nothing was recorded, is left so.
    """
    if size < 0:
        raise ValueError(f"cannot cut a file to {size} bytes")
    if size == 0 and not os.path.lexists(path):
        return
    with open_saved(path, "r+b") as file:
        found = os.fstat(file.fileno()).st_size
        if found < size:
            raise damaged(path, f"it has {found} bytes, and the checkpoint counted {size}")
        file.truncate(size)
        sync(file)


def sync(file: BinaryIO) -> None:
    """Returns when what was written is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Makes a rename in the folder survive a power cut; only POSIX can open a folder for that."""
    if os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sibling(path: Path) -> Path:
    """A hidden, unused name in the folder of `path`: the same file system, so that a rename is atomic."""
    return path.parent / f".cdpo-{uuid.uuid4().hex}.tmp"


def _check_kind(path: Path) -> int | None:
    """A regular file or a folder; None where there is nothing, and a UserError for all else."""
    try:
        kind = stat.S_IFMT(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:  # a ValueError for a name with a null character
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot open {quoted(path)}: {reason}; check its name and permissions") from error
    if kind == stat.S_IFLNK:
        raise UserError(f"{quoted(path)} is a link, and none is followed in a run; put what it leads to in its place")
    if kind not in (stat.S_IFREG, stat.S_IFDIR):
        raise UserError(f"{quoted(path)} is not a regular file; name one that cdpo saved")
    return kind
