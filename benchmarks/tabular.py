"""Speed and memory of the tabular laboratory; prints one table. Run it by `make bench`."""

import argparse
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import plain

from cdpo.noise import fold, uniform_pairs
from cdpo.tabular import BQL, CDPO, MM, PSRL, UBE, UCRL, Agent, Chain, Greedy, QLearning, simulate

PUBLISHED = 2660  # agent-steps a second of the original study's Python, PSRL at N = 10, on one core
SIZE, SEEDS, STEPS = 10, 64, 12_500


def best_of(repeats: int, work: Callable[[], object]) -> float:
    """Seconds of the fastest repeat; the first call, which compiles, is not counted."""
    work()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def first_call(agent: Agent) -> float:
    """Seconds of a short run in a process that has compiled nothing."""
    jax.clear_caches()
    began = time.perf_counter()
    simulate(Chain(SIZE), agent, seeds=8, steps=64 * (SIZE + 1))
    return time.perf_counter() - began


def random_numbers(repeats: int) -> tuple[float, float]:
    """Nanoseconds for a uniform number: JAX's, and ours, for 16 keys at once inside a loop."""
    keys = jax.random.split(jax.random.key(0), 16)

    def rate(draw: Callable[[jax.Array], jax.Array]) -> float:
        def turn(keys: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            return jax.vmap(lambda key: fold(key, 1))(keys), jax.vmap(draw)(keys)

        loop = jax.jit(lambda keys: jax.lax.scan(turn, keys, length=64))
        return best_of(repeats, lambda: jax.block_until_ready(loop(keys))) / (64 * 16 * 400) * 1e9

    return rate(lambda key: jax.random.uniform(key, (400,))), rate(lambda key: jnp.add(*uniform_pairs(key, (200,))))


def main() -> None:
    """Measure every agent beside plain NumPy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    began = time.perf_counter()
    plain.run(SIZE, STEPS, seed=0)
    yardstick = STEPS / (time.perf_counter() - began)
    agents: list[tuple[Agent, int, int]] = [
        (PSRL(), 1, STEPS),
        (CDPO(), 20, STEPS),
        (Greedy(), 1, STEPS),
        (UCRL(), 0, STEPS),
        (UBE(), 1, STEPS),
        (MM(), 1, STEPS),
        (QLearning(), 0, STEPS),
        (BQL(), 0, STEPS // 10),  # a thousand draws at every step
    ]
    print(f"chain, N = {SIZE}, {SEEDS} seeds, {STEPS} steps, {jax.default_backend()}, fastest of {repeats}\n")
    print(f"{'agent':<12} {'compile s':>9} {'steps/s':>12} {'x plain':>9} {'x published':>12} {'models/s':>11}")
    print(f"{'plain NumPy':<12} {'':>9} {yardstick:>12,.0f} {1:>9.1f} {yardstick / PUBLISHED:>12.1f} {'':>11}")
    for agent, models, steps in agents:
        compiled = first_call(agent)
        seconds = best_of(repeats, lambda a=agent, n=steps: simulate(Chain(SIZE), a, seeds=SEEDS, steps=n))
        rate = SEEDS * steps / seconds
        solved = f"{models * np.ceil(steps / (SIZE + 1)) * SEEDS / seconds:>11,.0f}" if models else f"{'':>11}"
        row = f"{agent.name:<12} {compiled:>9.1f} {rate:>12,.0f} {rate / yardstick:>9.1f} {rate / PUBLISHED:>12.1f}"
        print(row, solved, flush=True)
    theirs, ours = random_numbers(repeats)
    print(f"\na uniform number: jax.random {theirs:.0f} ns, fused Threefry {ours:.0f} ns")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"peak memory {peak / 2**20 if sys.platform != 'darwin' else peak / 2**30:.2f} GiB")


if __name__ == "__main__":
    main()
