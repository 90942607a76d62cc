"""What a disk has for certain, and what of the rest is there after the power has gone."""

import contextlib
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

_OPEN = open


class Disk:
    """Follows the calls of one process: contents are on the disk after fsync of a file, names after that of a folder.

    Of what is not, a part may be there: of a file the first bytes, and of a folder the first changes of names.
    """

    def __init__(self, chance: random.Random | None = None) -> None:
        """Without chances to take, nothing is followed."""
        self._chance = chance
        self._contents: dict[int, bytes] = {}  # by inode
        self._paths: dict[int, Path] = {}
        self._names: list[tuple[Path, Callable[[], None]]] = []  # a folder, and how to undo a change in it

    def opened(self, path: Path, make: Callable[[], Any]) -> Any:
        """A file is opened to be written."""
        before = _content(path)
        file = make()
        if self._chance is None:
            return file
        inode = os.fstat(file if isinstance(file, int) else file.fileno()).st_ino
        self._paths[inode] = path
        if before is None:
            self._contents[inode] = b""
            self._names.append((path.parent, lambda: path.unlink(missing_ok=True)))
        else:
            self._contents.setdefault(inode, before)
        return file

    def synced(self, descriptor: int) -> None:
        """A file or a folder is on the disk."""
        if self._chance is None:
            return
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.is_dir():
            self._names = [(folder, undo) for folder, undo in self._names if folder != path]
        elif (content := _content(path)) is not None:
            self._contents[os.fstat(descriptor).st_ino] = content

    def change(self, name: str, path: Path, make: Callable[[], Any]) -> Any:
        """A name is made or removed."""
        before = _content(path)
        result = make()
        if self._chance is None:
            return result
        if name == "mkdir":
            self._names.append((path.parent, lambda: shutil.rmtree(path, ignore_errors=True)))
        elif before is not None:
            self._names.append((path.parent, lambda: _write(path, before)))
        return result

    def move(self, name: str, source: Path, target: Path, make: Callable[[], Any]) -> Any:
        """A name is changed, or another one is given."""
        before = _content(target)
        result = make()
        if self._chance is None:
            return result

        def undo() -> None:
            if name == "link":
                target.unlink()
            else:
                os.rename(target, source)
            if before is not None:
                _write(target, before)

        self._names.append((target.parent, undo))
        for inode, path in self._paths.items():
            if path == source or source in path.parents:
                self._paths[inode] = target / path.relative_to(source) if path != source else target
        return result

    def lose(self) -> None:
        """The power goes: what was not synced is lost, or the later part of it."""
        assert self._chance is not None
        for inode, path in self._paths.items():
            found, kept = _content(path), self._contents[inode]
            if found is None or os.stat(path).st_ino != inode or found == kept:
                continue
            if found.startswith(kept):
                kept = found[: self._chance.randint(len(kept), len(found))]
            _write(path, kept)
        folders = [folder for folder, _ in self._names]
        kept = {folder: self._chance.randint(0, folders.count(folder)) for folder in dict.fromkeys(folders)}
        numbered = [(folders[:number].count(folder), folder, undo) for number, (folder, undo) in enumerate(self._names)]
        for number, folder, undo in reversed(numbered):
            if number >= kept[folder]:
                with contextlib.suppress(OSError):  # of what was in a folder that is lost too
                    undo()


def _content(path: Path) -> bytes | None:
    try:
        with _OPEN(path, "rb") as file:
            return file.read()
    except OSError:
        return None


def _write(path: Path, content: bytes) -> None:
    with _OPEN(path, "r+b" if path.exists() else "xb") as file:
        file.truncate(0)
        file.write(content)
