"""The natural step, held against one that is solved for in full."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from cdpo.dynamics.replay import Transition
from cdpo.solvers.base import Objective, Trust
from cdpo.solvers.policy import kl_divergence, log_density
from cdpo.solvers.trpo import TRPO, TRPOSettings

KEY = jax.random.key(0)
DISCOUNT = 0.9
PLAIN = {"hidden": (4,), "directions": 40, "damping": 0.5}


def free(observation, action, following):
    return jnp.zeros(observation.shape[:-1])


@pytest.fixture(scope="module")
def policy(linear_task, some_policy):
    return some_policy(linear_task(free))


@pytest.fixture(scope="module")
def taken():
    draw = lambda *tail: jax.random.normal(jax.random.fold_in(KEY, len(tail)), (5, 2, 3, *tail))  # noqa: E731
    return Transition(draw(1), jnp.tanh(draw(1)), 3 * draw(), draw(1), jnp.zeros((5, 2, 3)))


def learned(policy, taken, **changes):
    learner = TRPO(TRPOSettings(**{**PLAIN, **changes}))
    objective = Objective(DISCOUNT, Trust.off(policy, 4))
    state = learner.begin(policy, 2, KEY)
    _, judged = learner._judged(policy, state, taken, DISCOUNT)
    return jax.jit(lambda: learner.learn(policy, state, taken, objective, KEY))(), judged


def descended(policy, judged):
    """The loss of a flat vector of parameters, and its KL from the policy."""
    flat, structure = ravel_pytree(policy.net)
    old = policy(judged.observation)
    advantage = (judged.advantage - jnp.mean(judged.advantage)) / jnp.std(judged.advantage)

    def acting(place):
        return eqx.tree_at(lambda p: p.net, policy, structure(place))(judged.observation)

    def loss(place):
        here = acting(place)
        still = here._replace(log_deviation=jax.lax.stop_gradient(here.log_deviation))
        gain = jnp.mean(jnp.exp(log_density(still, judged.raw) - judged.density) * advantage)
        return jnp.mean((here.log_deviation - jnp.log(0.2)) ** 2) - gain

    return flat, loss, lambda place: jnp.mean(kl_divergence(old, acting(place)))


@pytest.mark.slow
def test_it_goes_where_the_loss_falls_most_for_its_kl(policy, taken):
    (after, _, metrics), judged = learned(policy, taken)
    flat, loss, kl = descended(policy, judged)
    curvature = np.asarray(jax.hessian(kl)(flat)) + 0.5 * np.eye(len(flat))
    natural = -np.linalg.solve(curvature, jax.grad(loss)(flat))
    step = np.asarray(ravel_pytree(after.net)[0] - flat)
    longest = np.sqrt(2 * 0.01 / (natural @ curvature @ natural))
    assert metrics["step"] > 0
    np.testing.assert_allclose(step, metrics["step"] * longest * natural, atol=0.02 * np.max(np.abs(step)))


@pytest.mark.slow(besides="0.01")
@pytest.mark.parametrize("bound", [1e-4, 1e-2, 1.0])
def test_a_step_gains_within_its_kl(policy, taken, bound):
    (after, _, metrics), judged = learned(policy, taken, kl=bound)
    flat, loss, kl = descended(policy, judged)
    place = ravel_pytree(after.net)[0]
    assert loss(place) < loss(flat)
    assert kl(place) <= bound * 1.001
    np.testing.assert_allclose(metrics["moved"], kl(place), rtol=1e-3)


@pytest.mark.slow
def test_where_no_trial_gains_it_stays(policy, taken):
    """A single trial, so far that the KL is beyond all bounds."""
    (after, _, metrics), _ = learned(policy, taken, kl=1e4, trials=1)
    assert metrics["step"] == 0
    np.testing.assert_array_equal(ravel_pytree(after.net)[0], ravel_pytree(policy.net)[0])
