"""The commands. Each is a frozen dataclass whose fields are its options, and whose `run` does the work."""

from typing import Any

from cdpo.commands.base import Command
from cdpo.commands.folders import Report, Reproduce, Resume
from cdpo.commands.tabular import Tabular
from cdpo.commands.training import CheckEnv, Evaluate, Train

COMMANDS: dict[str, type[Any]] = {
    "train": Train,
    "tabular": Tabular,
    "resume": Resume,
    "evaluate": Evaluate,
    "report": Report,
    "reproduce": Reproduce,
    "check-env": CheckEnv,
}

__all__ = ["COMMANDS", "Command"]
