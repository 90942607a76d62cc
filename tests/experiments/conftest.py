"""A simulation that takes no time, and what figures leave behind."""

import csv

import numpy as np
import pytest

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


@pytest.fixture
def rows():
    """Reads a table back."""

    def read(path):
        with open(path, newline="") as file:
            return list(csv.DictReader(file))

    return read
