"""Laps of a solver, which end when the policy no longer improves on most of the models."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cdpo.dynamics.models import member_models
from cdpo.solvers.base import Objective, Trust
from cdpo.solvers.validated import Validated

KEY = jax.random.key(0)
PEAKS = (0.32, 0.58)


class Mover(NamedTuple):
    """Raises the mean of actions by 0.1 in every lap, and counts them in its state."""

    def __call__(self, policy, models, objective, *, starts, state, key):
        bias = policy.net.biases[-1].at[0].add(0.1)
        return eqx.tree_at(lambda p: p.net.biases[-1], policy, bias), state + 1, {"mean": bias[0]}


def miss(observation, action, following):
    return -((action[..., 0] - following[..., 0]) ** 2)


@pytest.fixture
def run(linear_task, linear_belief, some_policy, starts_at):
    """The mean of actions at the end, the state, and the metrics; on each of two models another action is best."""
    task = linear_task(miss)
    belief = linear_belief(task, [[[0.0], [0.0]], *([[peak - 1], [0.0]] for peak in PEAKS)])  # s' = peak s
    policy = some_policy(task, hidden=())
    still = jax.tree.map(jnp.zeros_like, policy.net)
    policy = eqx.tree_at(lambda p: p.net, policy, eqx.tree_at(lambda n: n.biases[-1], still, jnp.array([0.0, -9.0])))

    @jax.jit
    def solved(share, patience, laps):
        solver = Validated(Mover(), share, patience, laps)
        models = member_models(belief, jnp.array([1, 2]))
        objective, state = Objective(0.0, Trust.off(policy, 4)), jnp.zeros((), jnp.int32)
        return solver(policy, models, objective, starts=starts_at([[1.0]]), state=state, key=KEY)

    def result(*told):
        after, state, metrics = solved(*told)
        return float(jnp.tanh(after(jnp.ones((1, 1))).mean[0, 0])), int(state), jax.device_get(metrics)

    return result


@pytest.mark.parametrize(("share", "peak"), [(1.0, PEAKS[0]), (0.5, PEAKS[1])])
@pytest.mark.parametrize("patience", [1, 3])
def test_it_ends_when_too_few_models_gain_and_gives_back_the_last_policy_on_which_enough_did(
    run, share, peak, patience
):
    mean, state, metrics = run(share, patience, 50)
    tried = np.tanh(0.1 * np.arange(50))
    best = int(np.argmax(-((tried - peak) ** 2)))
    assert mean == pytest.approx(tried[best], abs=0.02)
    assert metrics["laps"] == state == best + patience
    assert metrics["improved"] < share


def test_it_ends_after_the_most_laps(run):
    mean, _, metrics = run(0.5, 3, 2)
    assert mean == pytest.approx(np.tanh(0.2), abs=0.02)
    assert metrics["laps"] == 2 and metrics["improved"] == 1
    assert metrics["mean"] == pytest.approx(0.2)
