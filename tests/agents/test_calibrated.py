"""Intervals hold their share of the transitions of new episodes, by whole fits on tasks."""

from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cdpo.dynamics.calibration import LEVELS, Calibration, coverage, residuals
from cdpo.tasks import find_task
from cdpo.training.presets import preset

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "held_out.py"
LEARNED, NEW, SEEDS = 10, range(1000, 1010), 3  # random episodes
AT = np.array([LEVELS.index(0.5), LEVELS.index(0.9)])


@eqx.filter_jit
def covered(belief, new, key):
    """Of the 50% and 90% intervals, by the map and by that of a Gaussian variable."""
    some, fitted = residuals(belief.ensemble, belief.task, new.draw(key, (2048,))), belief.calibration
    both = fitted, Calibration.gaussian(fitted.scale, fitted.noise)
    return jnp.stack([jnp.mean(coverage(some, each), axis=-1)[AT] for each in both])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "gaussian"), [("pendulum-swingup", False), ("pusher", False), ("lqr", True)])
def test_half_and_nine_tenths_of_new_episodes_are_within_their_intervals(script, name, gaussian):
    task, measured = find_task(name), script(BENCHMARK)
    agent, found = preset("default", task).agent(task), []
    for seed in range(SEEDS):
        lived = [measured.replay_of(task, measured.lived(task, seed, each)) for each in (range(LEARNED), NEW)]
        key = jax.random.key(seed)
        mind, _ = agent.kit.fit(agent.begin((8,), key), lived[0], key, key)
        found.append(jax.device_get(covered(mind.belief, lived[1], key)))
    ours, plain = np.mean(found, axis=0)
    np.testing.assert_allclose(ours, [0.5, 0.9], atol=0.06)
    assert abs(ours[0] - 0.5) < abs(plain[0] - 0.5) or gaussian  # with linear models errors are Gaussian variables
