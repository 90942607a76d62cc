"""The system calls by which a process changes what is in a folder: counted, and one of them attacked."""

import builtins
import contextlib
import io
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

from attacks.disk import Disk

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@dataclass(frozen=True)
class Call:
    """One call: how to make it, and how to make half of it if that can be."""

    name: str
    make: Callable[[], Any]
    half: Callable[[], Any] | None = None


Reaction = Callable[[Call, int], Any]  # to a call, by its number from 0 on: what it returns


class Calls:
    """While this is entered, calls that change what is in `root`, or put it on the disk, go through `react`."""

    def __init__(self, root: Path, react: Reaction, disk: Disk | None = None) -> None:
        self.root, self.count = root.resolve(), 0
        self._react, self._disk = react, disk or Disk()

    def __call__(self, name: str, path: Any, make: Callable[[], Any], half: Callable[[], Any] | None = None) -> Any:
        """A call, if it is one about the folder."""
        if not self.concerns(path):
            return make()
        number, self.count = self.count, self.count + 1
        return self._react(Call(name, make, half), number)

    def concerns(self, path: Any) -> bool:
        return self.root in (Path(path), *Path(path).parents)

    @contextlib.contextmanager
    def entered(self) -> Iterator["Calls"]:
        with contextlib.ExitStack() as stack:
            for home, name, hook in self._hooks():
                stack.enter_context(mock.patch.object(home, name, hook))
            yield self

    def _hooks(self) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
        for name in ("unlink", "remove", "rmdir", "mkdir"):
            yield os, name, self._of_one(name, getattr(os, name))
        for name in ("rename", "replace", "link"):
            yield os, name, self._of_two(name, getattr(os, name))
        for name in ("fsync", "fdatasync", "ftruncate", "write"):
            yield os, name, self._of_file(name, getattr(os, name))
        yield os, "open", self._os_open(os.open)
        opened = self._open(builtins.open)
        yield from ((builtins, "open", opened), (io, "open", opened))

    def _of_one(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def hook(path: Any, *rest: Any, dir_fd: int | None = None, **more: Any) -> Any:
            at = _at(path, dir_fd)
            return self(name, at, lambda: self._disk.change(name, at, lambda: real(path, *rest, dir_fd=dir_fd, **more)))

        return hook

    def _of_two(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def hook(
            one: Any, two: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None, **more: Any
        ) -> Any:
            source, target = _at(one, src_dir_fd), _at(two, dst_dir_fd)

            def make() -> Any:
                given = {"src_dir_fd": src_dir_fd, "dst_dir_fd": dst_dir_fd, **more}
                return self._disk.move(name, source, target, lambda: real(one, two, **given))

            return self(name, target, make)

        return hook

    def _of_file(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def hook(file: Any, *rest: Any) -> Any:
            descriptor = file if isinstance(file, int) else file.fileno()

            def make() -> Any:
                result = real(descriptor, *rest)
                if name in ("fsync", "fdatasync"):
                    self._disk.synced(descriptor)
                return result

            def half() -> Any:
                return real(descriptor, rest[0][: len(rest[0]) // 2])

            return self(name, _of(descriptor), make, half if name == "write" else None)

        return hook

    def _os_open(self, real: Callable[..., int]) -> Callable[..., int]:
        def hook(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            def make() -> int:
                return real(path, flags, mode, dir_fd=dir_fd)

            if not flags & _WRITES:
                return make()
            at = _at(path, dir_fd)
            descriptor: int = self("open", at, lambda: self._disk.opened(at, make))
            return descriptor

        return hook

    def _open(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def hook(file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, errors: Any = None,
                 newline: Any = None, closefd: bool = True, opener: Any = None) -> Any:  # fmt: skip
            at = _of(file) if isinstance(file, int) else _at(file, None)
            if not set("wxa+") & set(mode) or not self.concerns(at):
                return real(file, mode, buffering, encoding, errors, newline, closefd, opener)

            def make() -> "_Raw":
                return _Raw(self, at, file, mode.replace("b", "").replace("t", ""), closefd, opener)

            raw = make() if isinstance(file, int) else self("open", at, lambda: self._disk.opened(at, make))
            if buffering == 0:
                return raw
            buffered: Any = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)

        return hook


class _Raw(io.FileIO):
    """A file whose writes are calls; what is buffered above it has not happened yet."""

    def __init__(self, calls: Calls, path: Path, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._calls, self._path = calls, path

    def write(self, data: Any, /) -> Any:
        content, write = bytes(data), super().write
        return self._calls("write", self._path, lambda: write(content), lambda: write(content[: len(content) // 2]))

    def truncate(self, size: int | None = None, /) -> int:
        truncate = super().truncate
        kept: int = self._calls("truncate", self._path, lambda: truncate(size))
        return kept


def _at(path: Any, folder: int | None) -> Path:
    given = Path(os.fsdecode(path))
    return _of(folder) / given if folder is not None else given.absolute()


def _of(descriptor: int) -> Path:
    return Path(os.readlink(f"/proc/self/fd/{descriptor}"))


def crash(at: int, when: str, disk: Disk | None = None) -> Reaction:
    """The process dies at a call: `before` it, `after` it, or when it is `torn`; with a disk, the power goes too."""

    def react(call: Call, number: int) -> Any:
        if number != at:
            return call.make()
        if when == "after":
            call.make()
        elif when == "torn" and call.half is not None:
            call.half()
        if disk is not None:
            disk.lose()
        _die()

    return react


def fail(at: int, error: int, *, lasting: bool, torn: bool) -> Reaction:
    """A call fails, and if that is lasting all that come later; writes that are torn have written half."""

    def react(call: Call, number: int) -> Any:
        if number < at or (number > at and not lasting):
            return call.make()
        if torn and number == at and call.half is not None:
            call.half()
        raise OSError(error, os.strerror(error))

    return react


def _die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("this process is dead")
