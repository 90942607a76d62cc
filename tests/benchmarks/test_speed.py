"""What `make bench` runs, in small: that it runs. How fast is for it to say."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cdpo.training.presets import preset

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmark(script, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return lambda name: script(FOLDER / f"{name}.py")


@pytest.mark.slow
def test_an_iteration_of_the_deep_part_is_timed_in_its_parts(benchmark, tiny):
    deep = benchmark("deep")
    small = {name: part for name, part in tiny.items() if name != "models"}
    cost = deep.measure(2, preset("paper", deep.TASK).changed(rule={"models": 2}, **small), 1)
    assert all(0 < seconds < math.inf for seconds in (cost.whole, cost.learning, cost.updates))


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [1, 2])
def test_every_new_transition_is_an_update_of_sac(benchmark, monkeypatch, seeds):
    sac = benchmark("sac")
    monkeypatch.setattr(sac, "HIDDEN", (8,))
    sac.ours(updates=3, seeds=seeds)()  # which counts them itself


@pytest.mark.slow
@pytest.mark.parametrize("change", [{}, {"moves": "actions", "plans": 512, "candidates": 64}])
def test_the_plans_of_a_round_of_half_cheetah_are_found_within_a_gibibyte(benchmark, change):
    mpc = benchmark("mpc")
    _, needed = mpc.plans(replace(mpc.SETTINGS.mpc, **change))
    assert needed < 2**30


@pytest.mark.slow
def test_the_plans_of_a_round_are_found(benchmark):
    mpc = benchmark("mpc")
    small = replace(mpc.SETTINGS.mpc, plans=2, horizon=2, hidden=(8,))
    assert np.isfinite(mpc.plans(small)[0]().value).all()
