"""Makes the golden folders of the cdpo that is installed: tiny runs, and beside each what it must still give later.

    python tools/golden.py tests/golden/VERSION [NAME ...]

They are made once for a release, by that release, and never again: tests hold every later version against them. A
version that saves something new adds runs of it here.
"""

import json
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import cdpo
from cdpo.api import AGENTS, DeepAgent
from cdpo.runs import RunFolder
from cdpo.training.run import Journal

SEED, HORIZON, EPISODES = 3, 10, 2
HIDDEN: dict[str, Any] = {"hidden": (4,)}
ROLLED: dict[str, Any] = {"rounds": 1, "particles": 2, "horizon": 2}
DYNA: dict[str, Any] = {**ROLLED, "updates": 2, "batch": 4}
BPTT: dict[str, Any] = {"updates": 2, "particles": 2, "horizon": 2, **HIDDEN}
SEARCH: dict[str, Any] = {"plans": 2, "candidates": 4, "rounds": 2, "updates": 2, "batch": 4, "particles": 2}
MPC: dict[str, Any] = {"horizon": 2, **HIDDEN, **SEARCH}
TRPO: dict[str, Any] = {**HIDDEN, "directions": 2, "trials": 2}
ENSEMBLE: dict[str, Any] = {"heads": 2, "hidden": (4,), "steps": 4, "check": 2, "batch": 8}
LOOP: dict[str, Any] = {"evaluation_episodes": 2, "random": 1, "stretch": 0}
PENDULUM, CART = "pendulum-swingup", "InvertedPendulum-v5"
TWO = {"models": 2}

# Name to rule, task, seeds and changes: every rule, solver, learner, likelihood, reference and kind of noise.
AGENT_RUNS: dict[str, tuple[str, str, int, dict[str, Any]]] = {
    "cdpo-gaussian-average": ("cdpo", CART, 2, {
        "rule": {**TWO, "reference": "average"}, "ensemble": {"likelihood": "gaussian"}, "dyna": DYNA, "sac": HIDDEN}),
    "cdpo-mean-mix-earlier": ("cdpo", PENDULUM, 1, {
        "rule": {**TWO, "reference": "mean", "sampling": "mix"}, "ensemble": {"data": "disjoint"},
        "dyna": {**DYNA, "earlier": 2, "expansion": "steve", "expanded": 2},
        "sac": {**HIDDEN, "holds": "entropy", "layer_norm": True, "critic": "pooled"},
        "loop": {"noise": "white", "random_noise": "white"}}),
    "cdpo-mpo": ("cdpo", PENDULUM, 1, {"rule": TWO, "learner": "mpo", "dyna": DYNA, "mpo": {**HIDDEN, "samples": 2}}),
    "cdpo-ppo": ("cdpo", PENDULUM, 1, {
        "rule": TWO, "learner": "ppo", "dyna": ROLLED, "ppo": {**HIDDEN, "epochs": 1, "minibatches": 2}}),
    "greedy-actor-critic": ("greedy", PENDULUM, 1, {
        "rule": TWO, "learner": "actor-critic", "dyna": ROLLED, "actor_critic": HIDDEN}),
    "greedy-linear": ("greedy", "lqr", 1, {"rule": TWO, "ensemble": {"kind": "linear"}, "dyna": DYNA, "sac": HIDDEN}),
    "hucrl-bptt": ("hucrl", PENDULUM, 1, {"rule": TWO, "solver": "bptt", "bptt": {**BPTT, "kind": "maac"}}),
    "psrl-bptt-svg": ("psrl", PENDULUM, 1, {"rule": TWO, "solver": "bptt", "bptt": {**BPTT, "kind": "svg"}}),
    "psrl-mpc": ("psrl", PENDULUM, 1, {"rule": TWO, "solver": "mpc", "mpc": MPC}),
    "mbpo": ("mbpo", CART, 1, {"rule": TWO, "dyna": {**DYNA, "earlier": 1, "kept": 1}, "sac": HIDDEN}),
    "me-trpo": ("me-trpo", PENDULUM, 1, {"rule": {**TWO, "laps": 2}, "dyna": ROLLED, "trpo": TRPO}),
    "slbo": ("slbo", PENDULUM, 1, {"rule": {**TWO, "turns": 1}, "dyna": ROLLED, "trpo": TRPO}),
    "dpi": ("dpi", PENDULUM, 1, {"mpc": MPC}),
    "sac": ("sac", CART, 1, {"rule": {"batch": 4, "ratio": 0.2}, "sac": HIDDEN}),
    "mpo": ("mpo", PENDULUM, 1, {"rule": {"batch": 4, "ratio": 0.2}, "mpo": {**HIDDEN, "samples": 2}}),
    "ppo": ("ppo", PENDULUM, 1, {"rule": {"steps": 10}, "ppo": {**HIDDEN, "epochs": 1, "minibatches": 2}}),
}  # fmt: skip

TABULAR: dict[str, list[str]] = {
    "tabular": ["--agents", "cdpo", "psrl", "--size", "2", "--ledger", "--cdpo.eta", "0.05"],
    # Compiled in seconds, as resuming it has to be.
    "tabular-interrupted": ["--agents", "q-learning", "random", "--size", "2", "3", "--q-learning.epsilon", "0.3",
                            "--period", "4", "--chain.pays", "attempt", "--prior.mean", "0.5"],
}  # fmt: skip


def agent_of(name: str) -> DeepAgent:
    """The agent of a run, which has learned nothing yet."""
    rule, task, seeds, changes = AGENT_RUNS[name]
    parts = {"ensemble": ENSEMBLE} if rule not in ("sac", "mpo", "ppo") else {}
    for part, values in ({"loop": LOOP} | changes).items():
        known = {"loop": LOOP, "ensemble": ENSEMBLE}.get(part, {})
        parts[part] = {**known, **values} if isinstance(values, dict) else values
    own = parts.pop("rule", {})
    return AGENTS[rule](task, seeds=seeds, seed=SEED, horizon=HORIZON, **parts, **own)


def observations_of(agent: DeepAgent) -> np.ndarray:
    """Three observations, float32 [3, d], always the same."""
    return np.random.default_rng(0).normal(0.0, 0.3, (3, agent.task.observations)).astype(np.float32)


def told_by(agent: DeepAgent) -> dict[str, Any]:
    """What an agent says of itself, of fixed observations and of the world."""
    seen = observations_of(agent)
    done = np.linspace(agent.task.low, agent.task.high, 3).astype(np.float32)
    seeds = [agent[index] for index in range(len(agent))]
    models = [] if agent.rule in ("sac", "mpo", "ppo") or agent._policy_only else [seed.model for seed in seeds]
    predicted = [model.predict(seen, done) for model in models]
    return {
        "rule": agent.rule,
        "task": agent.task.name,
        "seeds": agent.seeds,
        "episodes": agent.episodes,
        "evaluated": [pupil.evaluated for pupil in agent._trainer.pupils],
        "eval_returns": [[r["eval_return"] for r in agent.records if r["seed"] == seed] for seed in agent.seeds],
        "actions": [seed.predict(seen, deterministic=True)[0].tolist() for seed in seeds],
        "predicted": [[part.tolist() for part in parts] for parts in predicted],
    }


def agent_run(name: str) -> dict[str, Any]:
    """A saved agent, and what it says; `after` one more episode, too."""
    agent = agent_of(name).learn(EPISODES)
    agent.save("run")
    expected = {"kind": "agent", **told_by(agent)}
    return {**expected, "after": told_by(agent.learn(1))}


def policies(one: bool) -> dict[str, Any]:
    """The policies of an agent alone, of all its seeds or of the second."""
    agent = agent_of("cdpo-gaussian-average").learn(EPISODES)
    agent[1].save("run") if one else agent.save("run", policy_only=True)
    return {"kind": "agent", **told_by(cdpo.load("run"))}


def interrupted_training() -> dict[str, Any]:
    """A run of two seeds, which Ctrl-C ended before the last of its three episodes; and what the whole one measures."""
    words = ["train", PENDULUM, "--horizon", str(HORIZON), "--seeds", "2", "--seed", str(SEED), "--episodes", "3",
             "--cdpo.models", "2", *words_of("loop", LOOP), *words_of("ensemble", ENSEMBLE),
             *words_of("dyna", DYNA), *words_of("sac", HIDDEN)]  # fmt: skip
    write = Journal.write

    def interrupted(journal: Journal, lived: Any) -> None:
        write(journal, lived)
        if journal.trainer.episode == 3:
            raise KeyboardInterrupt

    command([*words, "--out", "whole"])
    with mock.patch.object(Journal, "write", interrupted):
        command([*words, "--out", "run"], code=130)
    records = [{k: v for k, v in each.items() if k != "wall_s"} for each in RunFolder.open("whole").records()]
    return {"kind": "train", "records": records}


def words_of(part: str, values: dict[str, Any]) -> list[str]:
    """Settings on the command line."""
    words = []
    for name, value in values.items():
        words += [f"--{part}.{name.replace('_', '-')}", *map(str, value if isinstance(value, tuple) else (value,))]
    return words


def tabular(name: str) -> dict[str, Any]:
    """A tabular run, whole or ended by Ctrl-C when the first of its cells had; and what the whole one measures."""
    words = ["tabular", "--env", "chain", "--seeds", "2", "--steps", "40", *TABULAR[name]]
    append = RunFolder.append

    def interrupted(folder: RunFolder, record: dict[str, Any]) -> None:
        append(folder, record)
        raise KeyboardInterrupt

    if name == "tabular":
        command([*words, "--out", "run"])
        return {"kind": "tabular", "results": RunFolder.open("run").summary["results"]}
    command([*words, "--out", "whole"])
    with mock.patch.object(RunFolder, "append", interrupted):
        command([*words, "--out", "run"], code=130)
    return {"kind": "tabular", "results": RunFolder.open("whole").summary["results"]}


def reproduction(*words: str) -> dict[str, Any]:
    """A figure of the paper."""
    command(["reproduce", *words, "--out", "run"])
    for checkpoints in Path("run").glob("cells/*/checkpoints"):
        shutil.rmtree(checkpoints)  # of training that has finished
    return {"kind": "reproduction", "results": RunFolder.open("run").summary["results"]}


RUNS: dict[str, Callable[[], dict[str, Any]]] = {
    **{name: lambda name=name: agent_run(name) for name in AGENT_RUNS},  # type: ignore[misc]
    "policies": lambda: policies(one=False),
    "policy-of-one-seed": lambda: policies(one=True),
    "train-interrupted": interrupted_training,
    **{name: lambda name=name: tabular(name) for name in TABULAR},  # type: ignore[misc]
    "reproduction-tabular": lambda: reproduction("regret", "--scale", "smoke"),
    "reproduction-training": lambda: reproduction("exploration", "--scale", "smoke", "--agents", "greedy"),
}


def command(words: list[str], code: int = 0) -> None:
    """Runs `cdpo` with these words."""
    from cdpo import cli

    found = cli._run(words)
    assert found == code, f"cdpo {' '.join(words)} ended with {found}"


def pack(path: Path, expected: dict[str, Any]) -> None:
    """Zips the folder `run` and what is expected of it, but for pictures: the same contents give the same bytes."""
    files = sorted(each for each in Path("run").rglob("*") if each.is_file() and "figures" not in each.parts)
    with zipfile.ZipFile(path, "w") as archive:
        members = {"expected.json": json.dumps(expected, indent=1).encode()}
        members |= {each.as_posix(): each.read_bytes() for each in files}
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED, 9)


def main() -> None:
    """Makes the runs that are named, or all of them."""
    out, names = Path(sys.argv[1]).absolute(), sys.argv[2:] or list(RUNS)
    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        path = out / f"{name}.zip"
        if path.exists():
            sys.exit(f"{path} exists; golden folders never change")
        with tempfile.TemporaryDirectory() as home:
            os.chdir(home)  # so that no folder knows where it was made
            pack(path, RUNS[name]())
            os.chdir("/")
        print(name, path.stat().st_size, flush=True)


if __name__ == "__main__":
    main()
