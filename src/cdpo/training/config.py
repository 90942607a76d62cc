"""What a training run was told, in the `config.json` of its folder."""

import contextlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeGuard

from cdpo.errors import UserError, shown
from cdpo.files import damaged, quoted
from cdpo.runs import METRICS, RunFolder, hardware, versions
from cdpo.tasks import Task, find_task
from cdpo.told import MOST
from cdpo.training.settings import Settings

_LARGEST_SEED = 2**31 - 1
_MOST_SEEDS = 10_000


def seed_numbers(seeds: int, seed: int) -> list[int]:
    """`seeds` numbers from `seed` on."""
    if not 1 <= seeds <= _MOST_SEEDS:
        raise UserError(f"seeds must be at least 1 and at most {_MOST_SEEDS}, not {seeds}")
    if not 0 <= seed <= _LARGEST_SEED - seeds:
        raise UserError(f"seed must be between 0 and {_LARGEST_SEED - seeds}, not {seed}")
    return list(range(seed, seed + seeds))


def run_config(
    task: Task,
    word: str | None,
    settings: Settings,
    name: str,
    seeds: Sequence[int],
    episodes: int,
    env_timeout: float | None = None,
) -> dict[str, Any]:
    """`config.json` of a training run; `word` is what the task can be found by again, None if it was given."""
    return {
        "kind": "train",
        "task": word,
        "task_name": task.name,
        "horizon": task.horizon,
        **({} if env_timeout is None else {"env_timeout": env_timeout}),
        "agent": settings.rule.name,
        **{name: getattr(settings, name) for name in ("solver", "learner") if name in settings.parts},
        "preset": name,
        "seeds": len(seeds),
        "seed": seeds[0],
        "episodes": episodes,
        "settings": settings.to_json(),
        "versions": versions(),
        "hardware": hardware(),
    }


def settings_of(folder: RunFolder) -> Settings:
    """Of a training run."""
    config = folder.config
    if config.get("kind") != "train":
        raise UserError(f"{quoted(folder.path)} is a run of kind {shown(config.get('kind'))}, not of training")
    return Settings.from_json(config.get("settings"))


def seeds_of(folder: RunFolder) -> list[int]:
    """The numbers of a training run's seeds."""
    count, first = (folder.config.get(name) for name in ("seeds", "seed"))
    if not (is_whole(count) and is_whole(first)):
        raise UserError(f"{quoted(folder.path)} has no seeds in its config.json; start the run again elsewhere")
    return seed_numbers(count, first)


def episodes_of(folder: RunFolder) -> int:
    """The last episode that a training run is to have: what is asked for stands here, and nowhere else."""
    episodes = folder.config.get("episodes")
    if not is_whole(episodes) or not 0 <= episodes <= MOST:
        raise UserError(f"{quoted(folder.path)} has no episodes in its config.json; start the run again elsewhere")
    return episodes


def records_of(folder: RunFolder, size: int | None = None) -> list[dict[str, Any]]:
    """What a training run measured, a record for each seed and episode; or the first `size` bytes of it."""
    records = folder.records(size)
    for number, record in enumerate(records, start=1):
        if not all(is_whole(record.get(name)) for name in ("seed", "episode")):
            raise damaged(folder.inside(METRICS), f"line {number} has no seed and episode")
    return records


def is_done(folder: RunFolder) -> bool:
    """Whether a training run has come to its last episode; a summary may be from before it was told to go on."""
    if not folder.finished:
        return False
    returns, stopped = (folder.summary.get(name) for name in ("returns", "stopped"))
    if not isinstance(returns, list) or not isinstance(stopped, dict) or len(stopped) == len(returns):
        return True
    return max((len(each) for each in returns if isinstance(each, list)), default=0) > episodes_of(folder)


def task_of(folder: RunFolder, named: Any = None, env_timeout: float | None = None) -> Task:
    """Of a training run, by the name that it has there, or by what the user names or gives in its place.

    A module that the folder names is imported only if the user names it as well, and never from the folder itself.
    Environments are watched as in the run, or for `env_timeout` seconds.
    """
    config, where = folder.config, quoted(folder.path)
    word, horizon = config.get("task"), config.get("horizon")
    if named is None and not isinstance(word, str):
        raise UserError(f"{where} was trained on an environment that has no name; use cdpo.load(path, task=...)")
    task = word if named is None else named
    module = task.rpartition(":")[0] if isinstance(task, str) else ""
    if module and module not in sys.modules:
        if named is None:
            raise UserError(
                f"{where} names {module!r}, which is not imported for a folder; say so: --task {task} or task={task!r}"
            )
        _check_elsewhere(module, folder)
    return find_task(
        task, horizon=horizon, env_timeout=config.get("env_timeout") if env_timeout is None else env_timeout
    )


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether this is a whole number, which a truth value is not."""
    return isinstance(value, int) and not isinstance(value, bool)


def _check_elsewhere(module: str, folder: RunFolder) -> None:
    """A UserError for a module that is in the folder itself."""
    with contextlib.suppress(ImportError, ValueError, AttributeError):  # importing it will say what is wrong
        spec = importlib.util.find_spec(module.partition(".")[0])
        home = folder.path.resolve()
        for place in [spec.origin, *(spec.submodule_search_locations or [])] if spec else []:
            if place is not None and Path(place).resolve().is_relative_to(home):
                raise UserError(
                    f"{module!r} is in {quoted(folder.path)} itself, and is not imported from there; move it"
                )
