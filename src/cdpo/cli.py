"""The command line: words to a command, mistakes to one line and exit code 2."""

import contextlib
import dataclasses
import difflib
import io
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import tyro

from cdpo.commands import COMMANDS, Command
from cdpo.commands.base import say
from cdpo.errors import Notice, StorageError, UserError, unknown
from cdpo.runs import hardware, keep_programs, versions
from cdpo.signals import Ended, heed
from cdpo.version import __version__

INTERRUPTED = 130
UNWRITTEN = 74  # as sysexits.h has it for input and output
_NO_MEMORY = (
    "there is not enough memory for these settings; smaller batches and networks, and fewer particles, plans or seeds, "
    "need less"
)


def usage() -> str:
    """The overview of `cdpo --help`."""
    lines = [
        "usage: cdpo COMMAND [OPTIONS]",
        "",
        "Conservative Dual Policy Optimization, and what it is compared with.",
        "",
    ]
    width = max(len(name) for name in COMMANDS)
    for name, command in COMMANDS.items():
        lines.append(f"  {name.ljust(width)}  {(command.__doc__ or '').splitlines()[0]}")
    lines += [
        "",
        "  cdpo COMMAND --help   the options of a command",
        "  cdpo --version        versions, for a bug report",
    ]
    lines += ["", "A first run: cdpo train inverted-pendulum --seeds 2 --episodes 8 --out runs/first"]
    return "\n".join(lines)


def parse(words: Sequence[str]) -> Command:
    """The command that the words ask for; a UserError of one line if they do not make sense."""
    name, *rest = words
    if name not in COMMANDS:
        raise unknown("command", name, COMMANDS)
    kind = COMMANDS[name]
    if {"-h", "--help"} & set(rest):
        return _show_help(name, [word for word in rest if word not in ("-h", "--help")])
    complaint = io.StringIO()
    try:
        # tyro explains itself in boxes of several lines; they are folded into one.
        with contextlib.redirect_stderr(complaint), contextlib.redirect_stdout(complaint):
            command, left = tyro.cli(kind, args=rest, prog=f"cdpo {name}", return_unknown_args=True)
            if hasattr(command, "with_preset") and not left:
                # Settings that were not typed come from the preset that was.
                command = tyro.cli(kind, args=rest, prog=f"cdpo {name}", default=command.with_preset())
    except SystemExit:
        raise UserError(f"{_folded(complaint.getvalue())}; see cdpo {name} --help") from None
    if left:
        flags = [word for word in left if word.startswith("-")]
        if not flags:
            raise UserError(f"unexpected word {left[0]!r}; see cdpo {name} --help")
        flag = flags[0].split("=")[0]
        near = difflib.get_close_matches(flag, _flags(kind), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UserError(f"unknown option {flag}{hint} (cdpo {name} --help lists them)")
    return command


def _show_help(name: str, words: Sequence[str]) -> Command:
    """Prints the help and exits; where other words say enough for a preset, its values stand as the defaults."""
    kind = COMMANDS[name]
    known: dict[str, Any] = {}
    if hasattr(kind, "with_preset"):
        with contextlib.suppress(UserError):  # help is for those who do not know the words yet
            command: Any = parse([name, *words])
            known = {"default": command, "description": command.about()}
    return tyro.cli(kind, args=["--help"], prog=f"cdpo {name}", **known)


def _flags(kind: type[Any], prefix: str = "--") -> list[str]:
    """Every option of a command, nested ones with their part's name."""
    flags = []
    for field in dataclasses.fields(kind):
        flag = prefix + field.name.replace("_", "-")
        if tyro.conf.Suppress in getattr(field.type, "__metadata__", ()):
            continue
        default = field.default
        nested = dataclasses.is_dataclass(default) and not isinstance(default, type)
        flags += _flags(type(default), flag + ".") if nested else [flag]
    return flags


def _folded(box: str) -> str:
    """What a tyro box says, in one line: its first paragraph after the title."""
    bare = (re.sub(r"^[│|]\s?|\s*[│|]$", "", line).strip() for line in box.splitlines())
    paragraphs: list[list[str]] = [[]]
    for line in bare:
        if not line or line[0] in "╭╰+" or set(line) <= set("─-"):
            paragraphs.append([])
        else:
            paragraphs[-1].append(line)
    said = [" ".join(lines) for lines in paragraphs if lines]
    # A box without borders has its title, a word or two, as the first paragraph.
    body = next((text for text in said if len(text.split()) > 2), "the command line cannot be understood")
    return body.rstrip(".")


def main() -> None:
    """What the `cdpo` command does."""
    heed()
    warnings.simplefilter("always", Notice)
    warnings.showwarning = _one_line(warnings.showwarning)
    try:
        code = _run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of a pipe has had enough: quiet, as other tools are.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)


def _run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return 0
    if words[0] == "--version":
        keep_programs()
        print(f"cdpo {__version__}")
        for name, value in {**versions(), **hardware()}.items():
            print(f"  {name}: {value}")
        return 0
    try:
        command = parse(words)
        keep_programs()
        return command.run(words) or 0
    except UserError as error:
        return _complain(error, 2)
    except StorageError as error:
        return _complain(error, UNWRITTEN)
    except BrokenPipeError:
        raise
    except OSError as error:
        return _complain(StorageError.of(error, "mend that, and try again"), UNWRITTEN)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not str(error).startswith("RESOURCE_EXHAUSTED"):
            raise
        return _complain(_NO_MEMORY, 2)
    except Ended as error:
        return error.code
    except KeyboardInterrupt:
        return INTERRUPTED


def _complain(what: object, code: int) -> int:
    say(f"cdpo: {' '.join(str(what).split())}")
    return code


def _one_line(show: Callable[..., None]) -> Callable[..., None]:
    """How warnings are shown, but for what the user should know: that is a line as others of this command."""

    def shown(message: Any, category: type[Warning], *where: Any) -> None:
        if issubclass(category, Notice):
            say(f"cdpo: {message}")
        else:
            show(message, category, *where)

    return shown
