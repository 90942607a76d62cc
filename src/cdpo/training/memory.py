"""What memory a run will need, told before it is begun: where there is too little, the system would end it unheard."""

import os
import warnings
from pathlib import Path

import jax

from cdpo.errors import Notice
from cdpo.tasks import Task
from cdpo.training.loop import capacity_for
from cdpo.training.settings import Settings
from cdpo.training.sizes import at_once, held, row_width

_BYTES = 4  # of a number
_LIBRARIES = 1300 << 20  # bytes of a process that has compiled its programs, as measured with three agents
_COPIES = 2  # of what an iteration begins with and ends with
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # of a container


def needed(settings: Settings, task: Task, seeds: int, episodes: int) -> int:
    """Bytes, about: by the arrays that are known before anything is compiled."""
    replay = capacity_for(task, (episodes + 1) * task.horizon) * row_width(task)
    side_by_side = min(seeds, os.cpu_count() or 1) if jax.default_backend() == "cpu" else seeds
    numbers = seeds * _COPIES * (replay + held(settings, task)) + side_by_side * at_once(settings, task)
    return _LIBRARIES + _BYTES * numbers


def free() -> int | None:
    """Bytes that this process may still have, if the system tells."""
    told = []
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        told.append(int(lines["MemAvailable"].split()[0]) << 10)
    except (OSError, KeyError, ValueError):
        pass
    for limit in _LIMITS:
        try:
            told.append(int(Path(limit).read_text()))
        except (OSError, ValueError):  # another system, or no limit
            continue
    return min(told, default=None)


def warn_if_short(settings: Settings, task: Task, seeds: int, episodes: int) -> None:
    """A Notice if a run will need more memory than there is; an accelerator says so itself."""
    need, have = needed(settings, task, seeds, episodes), free()
    if jax.default_backend() == "cpu" and have is not None and need > have:
        told = f"this run will need about {need / 2**30:.1f} GiB of memory, and {have / 2**30:.1f} GiB are free"
        warnings.warn(Notice(f"{told}; fewer seeds, particles or models need less"), stacklevel=2)
