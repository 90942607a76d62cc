"""What is controlled: the paper's tasks, a linear one whose optimum is known, and any Gymnasium environment."""

import importlib
from typing import TYPE_CHECKING, Any

from cdpo.tasks import registration as registration

if TYPE_CHECKING:
    from cdpo.tasks.base import Task as Task
    from cdpo.tasks.check import Report as Report
    from cdpo.tasks.check import check_task as check_task
    from cdpo.tasks.find import find_task as find_task
    from cdpo.tasks.library import TASKS as TASKS
    from cdpo.tasks.library import lqr_step as lqr_step
    from cdpo.tasks.library import pendulum_step as pendulum_step

_HOMES = {
    "TASKS": "library",
    "Report": "check",
    "Task": "base",
    "check_task": "check",
    "find_task": "find",
    "lqr_step": "library",
    "pendulum_step": "library",
}

__all__ = ["TASKS", "Report", "Task", "check_task", "find_task", "lqr_step", "pendulum_step"]


def __getattr__(name: str) -> Any:
    """Names are imported when first used: an environment alone, in a process of its own, needs no JAX."""
    if name in _HOMES:
        return getattr(importlib.import_module(f"cdpo.tasks.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'cdpo.tasks' has no attribute {name!r}")
