"""What rows that were held out tell of new episodes: single ones, and blocks and whole episodes as it is done.

    python benchmarks/held_out.py                  random episodes of two tasks, 2 to 40 of them, six seeds each

The models of the default preset are fitted once to so many episodes. A line for each task, number of episodes and way
to split: the reference's error (root mean square, in z-scores) and the coverage of the 50% and 90% intervals, on the
rows that were held out for a test and on 20 new episodes, averaged over the seeds.
"""

import argparse

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cdpo.agents.model_based import JUDGED
from cdpo.dynamics.calibration import LEVELS, coverage, residuals
from cdpo.dynamics.ensemble import EnsembleSettings, split_rows_of
from cdpo.dynamics.models import Belief
from cdpo.dynamics.replay import Replay
from cdpo.tasks import Task, find_task
from cdpo.training.collect import training_life
from cdpo.training.loop import capacity_for
from cdpo.training.presets import preset
from cdpo.training.sizes import row_width

TASKS, EPISODES, NEW = ("pendulum-swingup", "inverted-pendulum"), (2, 5, 10, 40), 20
HALF, MOST = LEVELS.index(0.5), LEVELS.index(0.9)


def lived(task: Task, seed: int, episodes: range) -> np.ndarray:
    """The rows of random episodes."""
    environment = task.make()
    lives = [training_life(environment, task, seed, number, "pink", random=True) for number in episodes]
    return np.concatenate([life.go(None, task.horizon) for life in lives])


def replay_of(task: Task, rows: np.ndarray) -> Replay:
    """A replay with room for all that is measured here."""
    room = capacity_for(task, (max(EPISODES) + NEW) * task.horizon)
    filled = np.zeros((room, row_width(task)), np.float32)
    filled[: len(rows)] = rows
    return Replay(jnp.asarray(filled), jnp.asarray(len(rows), jnp.int32), task.observations, task.actions)


@eqx.filter_jit
def told(belief: Belief, replay: Replay, new: Replay, settings: EnsembleSettings, key: Array) -> dict[str, Array]:
    """Error and coverage on test rows and on new ones."""
    split = split_rows_of(replay, settings, key)
    rows = {"seen": replay.transitions(split.spread(2, JUDGED)), "new": new.draw(key, (4096,))}
    numbers = {}
    for name, some in rows.items():
        found = residuals(belief.ensemble, belief.task, some)
        covered = jnp.mean(coverage(found, belief.calibration), axis=-1)
        numbers[name] = jnp.stack([jnp.sqrt(jnp.mean(found.error**2)), covered[HALF], covered[MOST]])
    return numbers | {"seen": jnp.where(split.counts[2] > 0, numbers["seen"], jnp.nan)}


def measure(task: Task, episodes: int, by_rows: bool, seeds: int) -> dict[str, np.ndarray]:
    """Averages over the seeds."""
    agent = preset("default", task).changed(ensemble={"test": 0.1}).agent(task)
    found: dict[str, list[np.ndarray]] = {"seen": [], "new": []}
    for seed in range(seeds):
        rows = lived(task, seed, range(episodes))
        if by_rows:  # every row an episode of its own
            rows[:, -1] = np.arange(len(rows))
        new = replay_of(task, lived(task, seed, range(1000, 1000 + NEW)))
        replay, key = replay_of(task, rows), jax.random.key(seed)
        mind, _ = agent.kit.fit(agent.begin((8,), key), replay, key, jax.random.fold_in(key, 1))
        for name, numbers in jax.device_get(told(mind.belief, replay, new, agent.kit.ensemble, key)).items():
            found[name].append(numbers)
    with np.errstate(invalid="ignore"):  # a short episode or two leave nothing for a test
        return {name: np.nansum(each, axis=0) / np.isfinite(each).sum(axis=0) for name, each in found.items()}


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--episodes", nargs="+", type=int, default=EPISODES)
    parser.add_argument("--seeds", type=int, default=6)
    options = parser.parse_args()
    print("task               episodes  split     error: seen   new    50%: seen   new    90%: seen   new")
    for name in options.tasks:
        for episodes in options.episodes:
            for split in ("rows", "episodes"):
                found = measure(find_task(name), episodes, split == "rows", options.seeds)
                pairs = "  ".join(f"{found['seen'][n]:11.3f} {found['new'][n]:6.3f}" for n in range(3))
                print(f"{name:18} {episodes:8}  {split:8} {pairs}", flush=True)


if __name__ == "__main__":
    main()
