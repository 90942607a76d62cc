"""A simulation that takes no time, and what figures leave behind."""

import csv

import numpy as np
import pytest

from cdpo.experiments.training import COVERAGE
from cdpo.tabular import study
from cdpo.tabular.ledger import Entry
from cdpo.tabular.simulation import Run


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Compiled programs are not kept in the user's own cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def simulated(monkeypatch):
    """Replaces the simulation by numbers that depend on the agent; the list of agents that were run."""
    agents = []

    def simulate(environment, agent, *, seeds, seed, steps, period, ledger=False, progress=None, **_):
        agents.append(agent)
        period = environment.period if period is None else period
        shape = (seeds, -(-steps // period))
        rng = np.random.default_rng([seed, *repr(agent).encode()])
        entry = Entry(*(rng.normal(size=shape) for _ in Entry._fields)) if ledger else None
        if progress:
            progress(seeds * steps)
        rewards = (rng.uniform(size=shape) for _ in range(3))
        return Run(agent, np.arange(seed, seed + seeds), steps, period, *rewards, rng.uniform(size=seeds), entry)

    monkeypatch.setattr(study, "simulate", simulate)
    return agents


def _curve(steps, returns):
    """Of one seed: the random episode, then one for each return."""
    count = len(steps)
    return {
        "episode": list(range(count)),
        "env_steps": steps,
        "eval_return": [None, *returns][:count],
        **{key: [None] + [0.1 * place for place in range(1, count)] for key in COVERAGE},
    }


def _evaluated(curve):
    return [value for value in curve["eval_return"] if value is not None]


def _record(agent, curves, task="pusher", stopped=(), **changes):
    entry = {"lost_share": 0.5, "lost_return": 3.0, "unsettled": 0.1, "kl_of_bound": None, "kl_overspent": None}
    return {
        "task": task,
        "horizon": 10,
        "agent": agent,
        "label": "",
        "seeds": list(range(len(curves))),
        "episodes": 4,
        "curves": curves,
        "final": [np.mean(known[-3:]) if (known := _evaluated(each)) else None for each in curves],
        "ledger": [{**entry, **dict.fromkeys(COVERAGE, 0.9)} for _ in curves],
        "stopped": {str(seed): "the model in iteration 2: not a finite number" for seed in stopped},
        **changes,
    }


@pytest.fixture
def curve():
    return _curve


@pytest.fixture
def record():
    return _record


@pytest.fixture
def rows():
    """Reads a table back."""

    def read(path):
        with open(path, newline="") as file:
            return list(csv.DictReader(file))

    return read
