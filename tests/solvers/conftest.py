"""What the tests of the solvers share: tasks whose true dynamics are linear, and models that know them exactly."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cdpo.dynamics.calibration import Calibration
from cdpo.dynamics.ensemble import Ensemble
from cdpo.dynamics.models import Belief
from cdpo.dynamics.networks import MLP, Normaliser
from cdpo.dynamics.replay import Replay
from cdpo.solvers.base import Starts, Trust
from cdpo.solvers.policy import Policy
from cdpo.tasks import Task


@pytest.fixture(scope="module", autouse=True)
def all_compiled_soon(compiled_soon):
    pass


def never(observation, action, following):
    return jnp.zeros(observation.shape[:-1], bool)


def _task(reward, terminates=never, observations=1, actions=1):
    bound = np.ones(actions, np.float32)
    return Task("toy", None, observations, -bound, bound, 10, reward, terminates)


def _belief(task, changes, noise=None):
    """Members that say s' = s + [s, a] @ change, for `changes` [members, d + m, d], with noise of this deviation."""
    weights = jnp.asarray(changes, jnp.float32)
    size = task.observations
    bias = jnp.zeros((len(weights), size))
    if noise is not None:
        weights = jnp.concatenate([weights, jnp.zeros_like(weights)], axis=-1)
        bias = jnp.concatenate([bias, jnp.full_like(bias, 2 * jnp.log(noise))], axis=-1)
    net = MLP((weights,), (bias,), "swish", False)
    still, fits, losses = Normaliser.identity(size), jnp.ones((), jnp.int32), jnp.zeros(len(weights))
    ensemble = Ensemble(net, still, still, fits, losses, noise is not None, False, False)
    wide = jnp.broadcast_to(jnp.array([[-1e3], [1e3]]), (2, size))
    calibration = Calibration.gaussian(jnp.ones(size), jnp.full(size, float(noise is not None)))
    return Belief(ensemble, calibration, wide, jnp.array([-1e3, 1e3]), jnp.array(True), task)


def _policy(task, seed=0, extra=0, hidden=(8,)):
    """With opinions: an untrained policy does nothing anywhere."""
    rng = np.random.default_rng(seed)
    size = task.observations
    inputs = Normaliser(
        jnp.asarray(rng.normal(size=size), jnp.float32), jnp.asarray(rng.uniform(0.5, 2, size), jnp.float32)
    )
    policy = Policy.create(task, inputs, hidden, jax.random.key(seed), extra)
    return jax.tree.map(lambda leaf: leaf + 0.3 * jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype), policy)


def _starts(initial, weights=(1.0, 0.0, 0.0), visited=None, low=-2.0, high=2.0, actions=1):
    """From initial states [I, d], and transitions [N, 2 d + m + 2] of one episode."""
    initial = jnp.asarray(initial, jnp.float32)
    size = initial.shape[-1]
    rows = jnp.zeros((1, 2 * size + actions + 2)) if visited is None else jnp.asarray(visited, jnp.float32)
    rows = jnp.pad(rows, ((0, 0), (0, 1)))
    replay = Replay(rows, jnp.asarray(len(rows), jnp.int32), size, actions)
    return Starts(initial, replay, jnp.full(size, low), jnp.full(size, high), jnp.asarray(weights, jnp.float32))


def _around(policy, bound, active=True, count=32):
    states = jnp.linspace(-1, 1, count)[:, None]
    return Trust.around(policy, states, states + 0.01, jnp.float32(bound), active=active)


@pytest.fixture(scope="session")
def around():
    return _around


@pytest.fixture(scope="session")
def linear_task():
    return _task


@pytest.fixture(scope="session")
def linear_belief():
    return _belief


@pytest.fixture(scope="session")
def some_policy():
    return _policy


@pytest.fixture(scope="session")
def starts_at():
    return _starts
