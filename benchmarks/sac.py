"""Gradient updates of SAC beside Stable-Baselines3 (PyTorch) and SBX (JAX), on data of half-cheetah's shape.

    python benchmarks/sac.py                  1,000 updates on batches of 256, networks of 256 x 256; one seed, and six

Each library makes its updates as in training: ours in the one program that follows an episode, theirs by
`train(gradient_steps=1000)`, which draws all batches first. An update of any of them is a step of both critics, of the
policy and of the temperature, and of the targets. Ours is also asked for what other agents need of the same learner:
values kept within what rewards can add up to, and metrics averaged over all updates. The others are no part of this
library; without them (pip install 'cdpo[peers]') only our own speed is told.
"""

import argparse
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from bptt import best_of

from cdpo.tasks import find_task
from cdpo.training.loop import Trainer
from cdpo.training.presets import preset
from cdpo.training.sizes import row_width

TASK = find_task("HalfCheetah-v5")
ROWS, BATCH, HIDDEN = 10_000, 256, (256, 256)
SEEDS = 6
Work = Callable[[], object]


def rows() -> np.ndarray:
    """Transitions that no environment made: [observation, action, reward, next, terminated, episode]."""
    random = np.random.default_rng(0)
    drawn = random.uniform(-1, 1, (ROWS, row_width(TASK))).astype(np.float32)
    drawn[:, -2:] = 0
    return drawn


def ours(updates: int, seeds: int = 1) -> Work:
    """All that an iteration of training does between two episodes."""
    settings = preset("default", TASK, "sac").changed(rule={"batch": BATCH}, sac={"hidden": HIDDEN})
    trainer = Trainer(TASK, settings, list(range(seeds)))
    minds = trainer.minds()._replace(rows=jnp.full(seeds, ROWS - updates, jnp.int32))  # so many are new
    pupil = {"steps": ROWS, "iterations": 1, "evaluated": None, "stopped": None}
    trainer.restore(1, minds, [rows()] * seeds, [pupil] * seeds)

    def work() -> None:
        with jax.default_matmul_precision("float32"):
            told = [trainer._learned(chunk, range(len(chunk.pupils)))[1] for chunk in trainer.chunks]
        assert all((metrics["updates"] == updates).all() for metrics in told)

    return work


def theirs(updates: int) -> dict[str, Work]:
    """The same by the other libraries."""
    import sbx
    import stable_baselines3
    from stable_baselines3.common.logger import Logger

    d, m = TASK.observations, TASK.actions

    def of(kind: type) -> Work:
        told = {"buffer_size": ROWS, "batch_size": BATCH, "policy_kwargs": {"net_arch": list(HIDDEN)}, "device": "cpu"}
        model = kind("MlpPolicy", TASK.make(), seed=0, **told)
        model.set_logger(Logger(None, []))
        for row in rows():
            seen, done, reward, following, ended, _ = np.split(row, (d, d + m, d + m + 1, -2, -1))
            model.replay_buffer.add(seen, following, done, reward, ended, [{}])
        return lambda: model.train(gradient_steps=updates, batch_size=BATCH)

    return {"SBX": of(sbx.SAC), "Stable-Baselines3": of(stable_baselines3.SAC)}


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    updates, repeats = options.updates, options.repeats
    print(f"{updates} updates of SAC, batches of {BATCH}, networks of {HIDDEN}, {TASK.observations}-d observations,"
          f" {TASK.actions}-d actions")  # fmt: skip
    try:
        others = theirs(updates)
    except ModuleNotFoundError:
        others = {}
        print("  SBX and Stable-Baselines3 are not installed")
    mine, many, *seconds = best_of(repeats, ours(updates), ours(updates, SEEDS), *others.values())
    print(
        f"  ours {updates / mine:.0f} a second; {SEEDS} seeds side by side take {many / mine:.2f} times as long as one"
    )
    for name, each in zip(others, seconds, strict=True):
        print(f"  {name} {updates / each:.0f} a second; ours are {each / mine:.2f} times as fast")


if __name__ == "__main__":
    main()
