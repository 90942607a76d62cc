"""What the tests of the dynamics share: a small task, and ensembles whose members are written by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from cdpo.dynamics.calibration import Calibration
from cdpo.dynamics.ensemble import Ensemble
from cdpo.dynamics.models import Belief
from cdpo.dynamics.networks import MLP, Normaliser
from cdpo.tasks import Task


@pytest.fixture(scope="module", autouse=True)
def all_compiled_soon(compiled_soon):
    pass


def _task(observations=2, actions=1, **known):
    """Actions in [-2, 4]; what is not known is learned."""
    return Task(
        name="toy",
        make=None,
        observations=observations,
        low=np.full(actions, -2.0, np.float32),
        high=np.full(actions, 4.0, np.float32),
        horizon=10,
        **known,
    )


def _linear_ensemble(task, rng, heads=3, *, gaussian=False, inputs=None, targets=None):
    """Random linear members without hidden layers, so that NumPy can repeat what they say in a line."""
    outputs = task.observations + (task.reward is None)
    width = outputs * (1 + gaussian) + (task.terminates is None)
    weights = rng.normal(size=(1 + heads, task.observations + task.actions, width)).astype(np.float32)
    biases = rng.normal(size=(1 + heads, width)).astype(np.float32)
    return Ensemble(
        net=MLP((jnp.asarray(weights),), (jnp.asarray(biases),), "swish", False),
        inputs=Normaliser.identity(task.observations) if inputs is None else inputs,
        targets=Normaliser.identity(outputs) if targets is None else targets,
        fits=jnp.ones((), jnp.int32),
        held_out=jnp.zeros(1 + heads),
        gaussian=gaussian,
        learns_reward=task.reward is None,
        learns_end=task.terminates is None,
    )


def _believe(task, ensemble, scale=1.0, noise=0.0, rewards=(-1e3, 1e3), ends=True):
    """With a calibration, and states in a range that does not matter."""
    outputs = ensemble.targets.mean.shape[0]
    vector = lambda value: jnp.broadcast_to(jnp.asarray(value, jnp.float32), outputs)  # noqa: E731
    range_ = jnp.broadcast_to(jnp.array([[-1e3], [1e3]]), (2, task.observations))
    calibration = Calibration.gaussian(vector(scale), vector(noise))
    return Belief(ensemble, calibration, range_, jnp.array(rewards), jnp.array(ends), task)


@pytest.fixture(scope="session")
def toy():
    return _task


@pytest.fixture(scope="session")
def linear_ensemble():
    return _linear_ensemble


@pytest.fixture(scope="session")
def believe():
    return _believe
