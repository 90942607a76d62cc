"""What both updates of CDPO are worth on fixed data: under the models, and in the world.

    cdpo train half-cheetah --seeds 1 --seed 100 --episodes 6 --dyna.rounds 5 --out runs/data
    python tools/fixed_data.py runs/data "Dyna" '{}' --into fixed-data.csv
    python tools/fixed_data.py runs/data "POPLIN-P" '{"solver": "mpc"}' --into fixed-data.csv

Every seed learns from the transitions of the run's first seed, iteration after iteration, and no episode is added. A
line for each seed and iteration: discounted values of pi_{t-1}, q_t and pi_t under the reference, what pi_t is worth
beyond q_t on the sampled models, and what both return in the world. Lines of a trial take the place of older ones.
"""

import argparse
import csv
import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from cdpo.agents.cdpo import CDPO
from cdpo.agents.model_based import Bench, Plan
from cdpo.dynamics.replay import Replay
from cdpo.errors import UserError
from cdpo.files import write_atomic
from cdpo.report.figures import csv_bytes
from cdpo.runs import RunFolder, keep_programs
from cdpo.solvers.base import Starts
from cdpo.solvers.policy import HostPolicy, Policy
from cdpo.training.checkpoints import go_on
from cdpo.training.collect import evaluation, initial_states
from cdpo.training.config import seeds_of, settings_of, task_of
from cdpo.training.lanes import over_lanes, stack
from cdpo.training.loop import Trainer
from cdpo.training.presets import preset

_EPISODES = 2  # by which a policy is judged in the world
_TOLD = ("value_last", "value_q", "value_pi", "improvement_pi", "kl_spent")


class Watched(CDPO):
    """CDPO, telling q_t as well."""

    def improve(self, policy: Policy, bench: Bench) -> Plan:
        """As it is."""
        plan = super().improve(policy, bench)
        bench.metrics |= {
            "q": ravel_pytree(plan.reference.net)[0],
            "value_pi": bench.look(plan.policy, plan.model).value,
        }
        return plan


def measure(run: Path, trial: str, changes: dict[str, Any], seeds: list[int], iterations: int) -> list[dict[str, Any]]:
    """A line for each seed and iteration."""
    folder = RunFolder.open(run)
    task, theirs = task_of(folder), seeds_of(folder)
    collected = Trainer(task, settings_of(folder), theirs)
    go_on(folder, collected)
    rows = collected.rows()[0]
    settings = preset("default", task, "cdpo").changed(**changes)
    rule = {field.name: getattr(settings.rule, field.name) for field in fields(settings.rule)}
    settings = replace(settings, rule=Watched(**rule))
    agent, environment, weights = settings.agent(task), task.make(), settings.starts
    keys = [jax.random.fold_in(jax.random.key(0), seed) for seed in seeds]
    replay = Replay(jnp.asarray(rows), jnp.asarray(len(rows), jnp.int32), task.observations, task.actions)
    blank, mix = jnp.zeros(task.observations), jnp.array([weights.initial, weights.visited, weights.broad])
    starts = stack(
        [Starts(jnp.asarray(initial_states(environment, task, each)), replay, blank, blank, mix) for each in seeds]
    )
    mind, replays = stack([agent.begin(settings.hidden, jax.random.fold_in(key, 2)) for key in keys]), starts.visited
    learn = over_lanes(agent.learn)
    lines = []
    for iteration in range(1, iterations + 1):
        mind, metrics = learn(mind, replays, starts, jnp.full(len(seeds), iteration, jnp.int32), jnp.stack(keys))
        for lane, seed in enumerate(seeds):
            pi = jax.tree.map(lambda leaf, lane=lane: leaf[lane], mind.policy)
            q = eqx.tree_at(lambda policy: policy.net, pi, ravel_pytree(pi.net)[1](metrics["q"][lane]))
            told = {name: float(metrics[name][lane]) for name in _TOLD if name in metrics}
            for name, policy in (("return_q", q), ("return_pi", pi)):
                acting = HostPolicy(jax.device_get(policy))
                told[name] = float(np.mean(evaluation(environment, task, acting, seed, iteration, _EPISODES)))
            lines.append({"trial": trial, "seed": seed, "iteration": iteration, **told})
            print(lines[-1], flush=True)
    return lines


def main() -> None:
    """By the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="whose transitions are learned from")
    parser.add_argument("trial", help="its name")
    parser.add_argument("changes", type=json.loads, help="to CDPO's default preset, by part, as JSON")
    parser.add_argument("--seeds", type=int, nargs="+", default=[100, 101, 102])
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--into", type=Path, required=True, help="a CSV file, made or added to")
    told = parser.parse_args()
    keep_programs()
    try:
        lines = measure(told.run, told.trial, told.changes, told.seeds, told.iterations)
    except UserError as error:
        parser.error(str(error))
    known = list(csv.DictReader(told.into.read_text().splitlines())) if told.into.exists() else []
    write_atomic(told.into, csv_bytes([line for line in known if line["trial"] != told.trial] + lines))


if __name__ == "__main__":
    main()
