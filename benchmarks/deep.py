"""How fast the deep part is: an iteration of half-cheetah, and seeds side by side.

    python benchmarks/deep.py                 an iteration with the predecessor's settings, one seed
    python benchmarks/deep.py --seeds 1 6     what six seeds cost beside one, with the default settings

The predecessor of the paper's code needs 358 s for the gradient steps that belong to one episode of 1000 steps.
"""

import argparse
import time
from itertools import pairwise

import jax
import jax.numpy as jnp

from cdpo.runs import hardware
from cdpo.tasks import find_task
from cdpo.training.loop import Trainer
from cdpo.training.settings import preset

PREDECESSOR = 358.0  # seconds for an episode


def peak() -> float:
    """Products of large matrices, in multiply-adds and adds per second: what this machine can do at best."""
    size = 2048 if jax.default_backend() == "cpu" else 8192
    matrix = jnp.ones((size, size))
    product = jax.jit(lambda x: x @ x)
    with jax.default_matmul_precision("float32"):
        product(matrix).block_until_ready()
        best = min(_timed(lambda: product(matrix).block_until_ready()) for _ in range(5))
    return 2 * size**3 / best


def _timed(call) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def measure(seeds: int, name: str, iterations: int) -> tuple[float, float]:
    """Seconds of an iteration as a whole and of its learning, the quickest of some; the first two are warm-up."""
    task = find_task("half-cheetah")
    trainer = Trainer(task, preset(name, task).changed(loop={"evaluate": 10**6}), list(range(seeds)))
    learning: list[float] = []
    learn = trainer._learned

    def timed(chunk):
        began = time.perf_counter()
        result = jax.block_until_ready(learn(chunk))
        learning.append(time.perf_counter() - began)
        return result

    trainer._learned = timed
    whole = [_timed(trainer.advance) for _ in range(2 + iterations)]
    return min(whole[2:]), min(learning[1:])


def gradient_flops(name: str) -> float:
    """Arithmetic of the learner's gradient steps and of the fit in one iteration, one seed."""
    task = find_task("half-cheetah")
    settings = preset(name, task)
    inside = [task.observations + task.actions, *settings.sac.hidden, 1]
    critic = 2 * sum(a * b for a, b in pairwise(inside))  # twins
    inside = [task.observations, *settings.sac.hidden, 2 * task.actions]
    policy = sum(a * b for a, b in pairwise(inside))
    rows = settings.rule.models * settings.dyna.batch
    # Critics: targets, forward, backward (twice), and through them to the policy (twice); policy: twice, and backward.
    step = 2 * rows * (6 * critic + 4 * policy)
    updates = 2 * settings.dyna.rounds * settings.dyna.updates
    inside = [task.observations + task.actions, *settings.ensemble.hidden, task.observations]
    model = sum(a * b for a, b in pairwise(inside))
    members = 1 + settings.ensemble.heads
    fit = settings.ensemble.steps * members * settings.ensemble.batch * 6 * model
    imagined = settings.dyna.particles * settings.dyna.horizon * settings.rule.models * settings.dyna.rounds * 2
    return updates * step + fit + imagined * 2 * 2 * model


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
            whole, learning = measure(seeds, "default", options.iterations)
            first = first or learning
            ratio = f"{learning / first:.2f} times the first"
            print(f"half-cheetah, default settings, {seeds} seeds: {whole:.2f} s an iteration, {learning:.2f} s of it"
                  f" learning ({ratio})", flush=True)  # fmt: skip
        return
    best = peak()
    whole, learning = measure(1, "paper", options.iterations)
    flops = gradient_flops("paper")
    print(
        f"half-cheetah, the predecessor's settings: {whole:.1f} s an iteration, {PREDECESSOR / whole:.1f} times as fast"
    )
    print(f"  learning {learning:.1f} s, about {flops / 1e12:.2f} TFLOP: {flops / learning / 1e9:.0f} GFLOP/s,"
          f" {flops / learning / best:.0%} of the {best / 1e9:.0f} GFLOP/s of a large product here")  # fmt: skip


if __name__ == "__main__":
    main()
