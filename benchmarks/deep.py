"""How fast the deep part is: an iteration of half-cheetah, and seeds side by side.

    python benchmarks/deep.py                 an iteration with the predecessor's settings, one seed
    python benchmarks/deep.py --seeds 1 6     what six seeds cost beside one, with the default settings

The predecessor of the paper's code needs 358 s, on one thread, for the gradient steps that belong to one episode of
1000 steps: 40 for every 20 environment steps, on three simulated batches of 100 and a real one.
"""

import argparse
import math
import os
import time
from dataclasses import dataclass
from itertools import pairwise

import jax
import jax.numpy as jnp

from cdpo.agents import Kit
from cdpo.runs import hardware
from cdpo.tasks import find_task
from cdpo.training.loop import Trainer
from cdpo.training.presets import preset
from cdpo.training.settings import Settings

TASK = find_task("half-cheetah")
PREDECESSOR = 358.0  # seconds for an episode


def product_speed(batch: int, rows: int, size: int) -> float:
    """Additions and multiplications in a second, of `batch` products of rows x size with size x size."""
    left, right = jnp.ones((batch, rows, size)), jnp.ones((batch, size, size))
    product = jax.jit(jnp.matmul)
    with jax.default_matmul_precision("float32"):
        product(left, right).block_until_ready()
        best = min(_timed(lambda: product(left, right).block_until_ready()) for _ in range(20))
    return 2 * batch * rows * size**2 / best


def _timed(call) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


@dataclass
class Cost:
    """Seconds of an iteration, the quickest of some."""

    whole: float
    learning: float  # fit, updates, ledger
    updates: float  # gradient steps and the rollouts they learn from; where seeds are mapped not known


def measure(seeds: int, settings: Settings, iterations: int) -> Cost:
    """Iterations of half-cheetah; the first two, with compilation, do not count."""
    trainer = Trainer(TASK, settings.changed(loop={"evaluate": 10**6}), list(range(seeds)))
    learning, updates = [math.inf], [math.inf]
    learn, solve = trainer._learned, Kit.solve

    def timed_learn(chunk, lanes):
        began = time.perf_counter()
        result = jax.block_until_ready(learn(chunk, lanes))
        learning.append(time.perf_counter() - began)
        return result

    def timed_solve(*arguments):
        began = time.perf_counter()
        result = jax.block_until_ready(solve(*arguments))
        updates.append(time.perf_counter() - began)
        return result

    trainer._learned = timed_learn
    if len(trainer.chunks) == seeds:
        Kit.solve = timed_solve
    whole = [_timed(trainer.advance) for _ in range(2 + iterations)]
    Kit.solve = solve
    # Two updates, the referential and the conservative one, run the same program.
    return Cost(min(whole[2:]), min(learning[1 + seeds :] or learning), 2 * min(updates))


def flops_of_updates(settings: Settings) -> float:
    """Arithmetic of the gradient steps of one iteration, one seed, and of the rollouts they learn from."""
    inside = [TASK.observations + TASK.actions, *settings.sac.hidden, 1]
    critic = 2 * sum(a * b for a, b in pairwise(inside))  # twins
    inside = [TASK.observations, *settings.sac.hidden, 2 * TASK.actions]
    policy = sum(a * b for a, b in pairwise(inside))
    rows = settings.rule.models * settings.dyna.batch
    # Critics: targets, forward, backward (twice), and through them to the policy (twice); policy: twice, and backward.
    step = 2 * rows * (6 * critic + 4 * policy)
    gradient_steps = 2 * settings.dyna.rounds * settings.dyna.updates
    inside = [TASK.observations + TASK.actions, *settings.ensemble.hidden, TASK.observations]
    model = sum(a * b for a, b in pairwise(inside))
    imagined = settings.dyna.particles * settings.dyna.horizon * settings.rule.models * settings.dyna.rounds
    # The reference in both updates, the heads in one.
    return gradient_steps * step + imagined * 2 * (3 * model + 2 * policy)


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[])
    parser.add_argument("--iterations", type=int, default=2)
    options = parser.parse_args()
    print(", ".join(f"{name} {value}" for name, value in hardware().items()))
    if options.seeds:
        first = None
        for seeds in options.seeds:
            cost = measure(seeds, preset("default", TASK), options.iterations)
            first = first or cost
            print(f"half-cheetah, default settings, {seeds} seeds: {cost.whole:.2f} s an iteration"
                  f" ({cost.whole / first.whole:.2f} times the first), {cost.learning:.2f} s of it learning"
                  f" ({cost.learning / first.learning:.2f} times)", flush=True)  # fmt: skip
        return
    best = product_speed(1, 2048, 2048)
    small = product_speed(8, 100, 200)
    print(f"products: {best / 1e9:.0f} GFLOP/s of large matrices, {small / 1e9:.0f} of a batch as the critics have it")
    settings = preset("paper", TASK)
    cost, flops = measure(1, settings, options.iterations), flops_of_updates(settings)
    print("half-cheetah, the predecessor's settings, one seed")
    print(f"  gradient steps of an episode with their rollouts: {cost.updates:.1f} s,"
          f" {PREDECESSOR / cost.updates:.1f} times as fast as {PREDECESSOR:.0f} s")  # fmt: skip
    print(f"    about {flops / 1e12:.2f} TFLOP: {flops / cost.updates / 1e9:.0f} GFLOP/s,"
          f" {flops / cost.updates / best:.0%} of what large products reach here")  # fmt: skip
    print(f"  an iteration with fit, calibration, ledger and real steps: {cost.whole:.1f} s", flush=True)
    count = os.cpu_count() or 1
    all_ = measure(count, settings, options.iterations)
    print(f"the same, {count} seeds side by side, one for each core")
    print(f"  gradient steps: {all_.updates:.1f} s for all, {PREDECESSOR * count / all_.updates:.1f} times as fast;"
          f" {flops * count / all_.updates / 1e9:.0f} GFLOP/s")  # fmt: skip
    print(f"  an iteration: {all_.whole:.1f} s for all, {all_.whole / count:.1f} s for each")


if __name__ == "__main__":
    main()
