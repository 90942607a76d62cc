"""How long the plans of a round of POPLIN-P take on half-cheetah, and how much memory.

    python benchmarks/mpc.py                  with a policy and models that nothing has trained

It is `Planning.better`; a round goes on with gradient steps that imitate what was found.
"""

import argparse
from collections.abc import Callable
from functools import partial

import jax
from bptt import DISCOUNT, KEY, MODELS, TASK, best_of, untrained

from cdpo.solvers.mpc import MPC, MPCSettings
from cdpo.solvers.plans import Planning
from cdpo.solvers.policy import Policy
from cdpo.training.presets import preset

SETTINGS = preset("default", TASK)


def plans(settings: MPCSettings) -> tuple[Callable[[], object], int]:
    """A call that searches for the plans of a round, and the bytes that its program needs beside its arguments."""
    mpc, models = MPC(settings), untrained(SETTINGS.ensemble)
    policy = Policy.create(TASK, models.belief.ensemble.inputs, settings.hidden, KEY)
    state = mpc.begin(policy, MODELS, KEY)
    states = 0.1 * jax.random.normal(KEY, (settings.plans, TASK.observations))

    @jax.jit
    def search(policy, models, state, states, key):
        planning = Planning(settings, policy, models, DISCOUNT, partial(mpc.beyond, state, policy), settings.trace)
        return planning.better(states, planning.none(settings.plans), key)

    told = policy, models, state, states, KEY
    program = search.lower(*told).compile()
    return lambda: jax.block_until_ready(program(*told)), program.memory_analysis().temp_size_in_bytes


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    told = SETTINGS.mpc
    search, bytes_ = plans(told)
    [seconds] = best_of(options.repeats, search)
    print(f"POPLIN-P on half-cheetah: {told.plans} plans of {told.horizon} steps on {MODELS} models")
    print(f"  {seconds:.1f} s, {bytes_ / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
