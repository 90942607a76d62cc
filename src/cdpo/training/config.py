"""What a training run was told, in the `config.json` of its folder."""

import sys
from collections.abc import Sequence
from typing import Any

from cdpo.errors import UserError
from cdpo.runs import RunFolder, hardware, versions
from cdpo.tasks import Task, find_task
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
    task: Task, word: str | None, settings: Settings, name: str, seeds: Sequence[int], episodes: int
) -> dict[str, Any]:
    """`config.json` of a training run; `word` is what the task can be found by again, None if it was given."""
    return {
        "kind": "train",
        "task": word,
        "task_name": task.name,
        "horizon": task.horizon,
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
        raise UserError(f"{str(folder.path)!r} is a run of kind {config.get('kind')!r}, not of training")
    return Settings.from_json(config.get("settings"))


def task_of(folder: RunFolder, *, imports: bool = False) -> Task:
    """Of a training run, by its name; a module that the folder names is imported only where that is said."""
    config, where = folder.config, repr(str(folder.path))
    word, horizon = config.get("task"), config.get("horizon")
    if not isinstance(word, str):
        raise UserError(f"{where} was trained on an environment that has no name; use cdpo.load(path, task=...)")
    module = word.rpartition(":")[0]
    if module and module not in sys.modules and not imports:
        raise UserError(
            f"{where} names {module!r}, which is not imported for a folder; say so: --task or task={word!r}"
        )
    task = find_task(word)
    return task if horizon == task.horizon else find_task(word, horizon=horizon)
