"""Values of states along rollouts."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cdpo.solvers.values import Critics, CriticSettings, Memory, Path

KEY = jax.random.key(0)
STATES = jnp.broadcast_to(jnp.linspace(-1, 1, 8)[None, None, :, None], (4, 2, 8, 1))


def level(observation, action, following):
    return jnp.zeros(observation.shape[:-1])


@pytest.fixture
def policy(linear_task, some_policy):
    return some_policy(linear_task(level))


def paid(rewards):
    """Rollouts of three steps on two models, each of which pays the same at every step."""
    shape = STATES.shape[:3]
    reward = jnp.broadcast_to(jnp.asarray(rewards)[None, :, None], (3, *shape[1:]))
    return Path(STATES, jnp.ones(shape), reward, jnp.zeros_like(reward), jnp.zeros((*reward.shape, 1)))


@pytest.mark.parametrize(("critic", "said"), [("per-model", [1.0, -3.0]), ("pooled", [-1.0, -1.0])])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_there_is_a_critic_for_each_model_or_one_for_all(policy, critic, said, layer_norm):
    settings = CriticSettings(
        hidden=(16,), critic=critic, layer_norm=layer_norm, critic_steps=500, polyak=1.0, learning_rate=1e-2
    )
    memory = Memory.create(Critics.create(policy, 2, settings, KEY))
    path = paid([1.0, -3.0])
    memory, _ = jax.jit(lambda: memory.having_seen(path, 0.9).fitted(policy, path, path.reward, settings))()
    assert memory.critics.nets.layer_norm == layer_norm
    value = memory.beyond(policy, STATES[0])
    np.testing.assert_allclose(value, np.broadcast_to(np.array(said)[:, None], value.shape), atol=0.2)


@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_no_value_is_beyond_what_rewards_can_add_up_to(policy, scale):
    memory = Memory.create(Critics.create(policy, 2, CriticSettings(hidden=(4,)), KEY))
    assert np.all(memory.beyond(policy, STATES[0]) == 0)  # nothing was seen to be paid
    memory = memory._replace(scale=jnp.asarray(scale)).having_seen(paid([1.0, -3.0]), 0.9)
    np.testing.assert_allclose(memory.bounds, [-30, 10], rtol=1e-5)
    again = memory.having_seen(paid([0.5, -1.0]), 0.9)
    np.testing.assert_array_equal(again.bounds, memory.bounds)
    for absurd, bound in ((1e6, 10.0), (-1e6, -30.0)):
        off = eqx.tree_at(lambda m: m.critics.targets.biases[-1], memory, jnp.full((2, 1), absurd))
        np.testing.assert_allclose(off.beyond(policy, STATES[0]), bound, rtol=1e-5)
        # One step, then the value: r + 0.9 V, in units of the scale.
        aimed = off.returns(paid([1.0, -3.0]), policy, 0.9, 0.0)
        expected = (np.array([1.0, -3.0])[None, :, None] + 0.9 * bound) / scale
        np.testing.assert_allclose(aimed, np.broadcast_to(expected, aimed.shape), rtol=1e-5)
