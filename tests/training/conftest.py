import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cdpo.errors import UserError

SRC = Path(__file__).parents[2] / "src"

# Kills its own process at the n-th call of a function: before it, or after it has done its work.
CHILD = """
import importlib, os, signal, sys
module, name, when, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
from cdpo.training import run
run.PATIENCE = 0.0
if name != "-":
    home = importlib.import_module(module)
    *path, last = name.split(".")
    for part in path:
        home = getattr(home, part)
    original, calls = getattr(home, last), [0]
    def wrapped(*args, **kwargs):
        calls[0] += 1
        if when == "before" and calls[0] == count:
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*args, **kwargs)
        if when == "after" and calls[0] == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    setattr(home, last, wrapped)
sys.argv = ["cdpo", *sys.argv[5:]]
from cdpo.cli import main
main()
"""


@pytest.fixture
def path(tmp_path) -> Path:
    """Where a checkpoint goes."""
    return tmp_path / "state.npz"


@pytest.fixture(scope="session")
def complaint():
    """The message of the UserError that a call must end in: one line, which says what to do."""

    def of(call, *arguments) -> str:
        with pytest.raises(UserError) as caught:
            call(*arguments)
        message = str(caught.value)
        assert message.isprintable()
        assert "; " in message
        return message

    return of


@pytest.fixture(scope="session")
def tiny_words(tiny) -> list[str]:
    """The tiny settings on the command line, on a task with short episodes."""
    return [*short_words(tiny), *option_words(tiny, "dyna", "sac")]


@pytest.fixture(scope="session")
def tiny_bptt_words(tiny, tiny_bptt) -> list[str]:
    """The same by back-propagation through time."""
    return [*short_words(tiny), "--solver", "bptt", *option_words({"bptt": tiny_bptt}, "bptt")]


@pytest.fixture(scope="session")
def tiny_mpc_words(tiny, tiny_mpc) -> list[str]:
    """And by plans."""
    return [*short_words(tiny), "--solver", "mpc", *option_words({"mpc": tiny_mpc}, "mpc")]


def short_words(tiny):
    start = ["pendulum-swingup", "--horizon", "20", "--cdpo.models", str(tiny["models"])]
    return [*start, *option_words(tiny, "loop", "ensemble")]


def option_words(settings, *parts):
    words = []
    for part in parts:
        for name, value in settings[part].items():
            values = value if isinstance(value, tuple) else (value,)
            words += [f"--{part}.{name.replace('_', '-')}", *map(str, values)]
    return words


@pytest.fixture(scope="session")
def child(tmp_path_factory):
    """Runs `cdpo` in a process of its own, which may be told to kill itself at some call."""
    # Programs are compiled once for all children, of all workers.
    cache = tmp_path_factory.getbasetemp().parent / "children"

    def run(
        *words: str, kill: tuple[str, str, str, int] = ("-", "-", "-", 0), script: str = CHILD
    ) -> subprocess.CompletedProcess:
        environment = {
            **os.environ,
            "PYTHONPATH": str(SRC),
            "XDG_CACHE_HOME": str(cache),
            "JAX_PLATFORMS": "cpu",
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # compiled in half the time, and as deterministic
        }
        command = [sys.executable, "-c", script, *map(str, kill), *words]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
        if kill[3]:
            assert result.returncode == -signal.SIGKILL, result.stderr
        return result

    return run


@pytest.fixture(scope="session")
def told():
    """What a run folder tells, less the time that it took, and the checksum of it."""

    def read(folder: Path) -> list[dict]:
        records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        return [
            {name: value for name, value in record.items() if name not in ("wall_s", "crc32")} for record in records
        ]

    return read
