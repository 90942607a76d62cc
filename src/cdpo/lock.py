"""One writer at a time: the lock of a run folder.

The system holds it for an open file, and releases it with the process, however that ends: a lock file that is left
behind holds nothing. The file says who wrote last. Whoever may take over from a writer that is thought dead, and is
perhaps only out of sight, puts its own name there first: the other one sees that before it writes again, and stops.
"""

import contextlib
import errno
import json
import os
import platform
import threading
import time
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from cdpo.errors import Notice, UserError
from cdpo.files import open_saved, quoted

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # not POSIX
    fcntl = None

NAME = ".lock"
_TAKEN = (errno.EWOULDBLOCK, errno.EACCES)
_LETS_GO = 600.0  # seconds in which a writer from which another takes over has come to its next episode
_LOOKS = 0.2  # seconds between two looks

_held: set[int] = set()  # descriptors of this process that hold a lock, or wait for one


class Lock:
    """The right to write in a folder."""

    def __init__(self, folder: Path) -> None:
        """Not taken yet."""
        self._folder, self._path = folder, folder / NAME
        self._mark = {
            "host": platform.node(),
            "process": os.getpid(),
            "since": time.strftime("%Y-%m-%d %H:%M:%S"),
            "mark": uuid.uuid4().hex,
        }

    def check(self) -> None:
        """A UserError if another writer has taken over."""
        if self._told().get("mark") != self._mark["mark"]:
            raise UserError(
                f"{quoted(self._folder)} was taken over{self._who()}, which goes on there; this one has ended"
            )

    @contextlib.contextmanager
    def held(self, *, taking_over: bool) -> Iterator[None]:
        """Inside, nobody else writes; a UserError if somebody does already."""
        descriptor = self._open()
        _held.add(descriptor)
        try:
            before = self._who()
            if taking_over:
                self._sign()
            waited = 0.0
            while not self._taken(descriptor):
                if not taking_over or waited > _LETS_GO:
                    where = quoted(self._folder)
                    raise UserError(f"{where} is being written{before}; wait for its end, or stop it")
                threading.Event().wait(_LOOKS)
                waited += _LOOKS
            if taking_over:
                self.check()  # others may have come for it meanwhile
            else:
                self._sign()
            yield
        finally:
            if descriptor in _held:  # not in a child, which has let go of it
                _held.discard(descriptor)
                if fcntl is not None:
                    with contextlib.suppress(OSError):
                        fcntl.flock(descriptor, fcntl.LOCK_UN)  # also of copies that a child has not closed yet
                os.close(descriptor)

    def _open(self) -> int:
        try:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            with open_saved(self._path, "r+b") as file:
                return os.dup(file.fileno())
        except PermissionError as error:
            raise UserError(
                f"{quoted(self._folder)} cannot be written: {error.strerror}; see to its permissions"
            ) from error

    def _taken(self, descriptor: int) -> bool:
        if fcntl is None:
            self._warn("this system has no locks for files")
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _TAKEN:
                return False
            self._warn(str(error.strerror))  # of a network, and without locks
            return True
        found = os.fstat(descriptor)
        return os.path.samestat(found, self._path.stat())  # somebody may have removed the file, and made another

    def _warn(self, why: str) -> None:
        told = f"{quoted(self._folder)} cannot be locked ({why}); see to it that nothing else writes there"
        warnings.warn(Notice(told), stacklevel=2)

    def _sign(self) -> None:
        """In place: another file would not be the one that is locked."""
        with open_saved(self._path, "r+b") as file:
            file.write(json.dumps(self._mark).encode() + b"\n")
            file.truncate()

    def _told(self) -> dict[str, Any]:
        """By the last writer; nothing if that cannot be read."""
        with open_saved(self._path) as file:
            try:
                told = json.loads(file.read(4096))
            except (ValueError, RecursionError):
                return {}
        return told if isinstance(told, dict) else {}

    def _who(self) -> str:
        told = self._told()
        words = [f" {word} {told[name]!r}" for name, word in _WORDS.items() if isinstance(told.get(name), str | int)]
        return "".join(words)[:200]


_WORDS = {"process": "by process", "host": "on", "since": "since"}


def _forget() -> None:
    """In a child: it has the descriptors too, and would hold what its parent holds after the parent's end."""
    for descriptor in _held:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
