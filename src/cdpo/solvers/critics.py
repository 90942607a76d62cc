"""Values: twin critics of actions, critics of states, and what both aim at."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from cdpo.dynamics.networks import MLP, rescale_inputs
from cdpo.dynamics.replay import Experience
from cdpo.solvers.policy import Policy

_CERTAIN = 1e-6  # variance, in squared units of the reward, below which all futures are equally certain


def same_values(critics: MLP, old: Policy, new: Policy, before: Array, after: Array) -> MLP:
    """Critics that say the same once they see what `new` sees, and rewards in units of `after`."""
    critics = rescale_inputs(critics, old.inputs, new.inputs)
    last = jax.tree.map(lambda leaf: leaf * before / after, (critics.weights[-1], critics.biases[-1]))
    return eqx.tree_at(lambda n: (n.weights[-1], n.biases[-1]), critics, last)


def by_model(batches: Array) -> Array:
    """[K, M, B, ...] -> [M, K * B, ...]."""
    return jnp.moveaxis(batches, 0, 1).reshape(batches.shape[1], -1, *batches.shape[3:])


def widened(known: Array, rewards: Array) -> Array:
    """The least and the largest reward of a step, [2], with more of them."""
    return jnp.stack([jnp.minimum(known[0], jnp.min(rewards)), jnp.maximum(known[1], jnp.max(rewards))])


# --- of actions


def critic_inputs(policy: Policy, observation: Array, action: Array) -> Array:
    """What critics of actions see."""
    return jnp.concatenate([policy.inputs(policy.task.features(observation)), action], axis=-1)


def twin_values(critics: MLP, policy: Policy, observation: Array, action: Array) -> Array:
    """Q of both twins of each model on its own batch, [M, B] -> [M, 2, B]."""
    return critics(critic_inputs(policy, observation, action)[:, None])[..., 0]


def reward_range(known: Array, batches: Experience) -> Array:
    """`known` [2], widened by the mean rewards per step of batches."""
    return widened(known, batches.reward / batches.steps)


class Futures(NamedTuple):
    """Ways in which transitions [K, M, B] go on: of L lengths, each under E models, the first of them its own."""

    reward: Array  # [L, E, K, M, B], discounted sum, the transition's own among it
    next: Array  # [L, E, K, M, B, d]
    discount: Array  # [L, E, K, M, B], of what follows: 0 where the task ended
    entropy: Array  # [L, E, K, M, B], discounted sum, of what the policy did on the way


def bellman_target(
    policy: Policy, targets: MLP, batches: Experience | Futures, temperature: Array, bounds: Array, key: Array
) -> Array:
    """r + discount * (min Q - temperature * log pi) of the next state, [K, M, B]; nothing follows a termination.

    Q is kept within `bounds` [2], what rewards and entropy can add up to: beyond lies only the divergence of
    bootstrapping.
    """
    action, density = policy.sample(batches.next, key)
    following = jnp.min(twin_values(targets, policy, by_model(batches.next), by_model(action)), axis=1)
    following = jnp.moveaxis(following.reshape(density.shape[1], density.shape[0], -1), 1, 0)
    following = jnp.clip(following, bounds[0], bounds[1]) - temperature * density
    return batches.reward + batches.discount * following


def expanded_target(
    policy: Policy, targets: MLP, futures: Futures, temperature: Array, bounds: Array, key: Array
) -> tuple[Array, Array]:
    """Mixed over the futures, [K, M, B], entropy on the way among rewards; and the mean length by which they were."""
    futures = futures._replace(reward=futures.reward + temperature * futures.entropy)
    apart = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0)[:, :, None], targets)  # each twin, as if it were both

    def each(one: Futures) -> Array:  # the same noise in all of them: they are to differ by model and twin alone
        return jax.vmap(lambda twin: bellman_target(policy, twin, one, temperature, bounds, key))(apart)

    return mixed(jax.vmap(jax.vmap(each))(futures))


def mixed(twins: Array) -> tuple[Array, Array]:
    """Of targets [L, E, 2, ...] those of the own model and the worse twin, [...]; and the mean length.

    Each length has a share by the inverse of its variance over the other models and the twins.
    """
    own = jnp.min(twins[:, 0], axis=1)
    if len(own) == 1:
        return own[0], jnp.zeros(())
    certain = 1 / (jnp.var(twins[:, 1:], axis=(1, 2)) + _CERTAIN)
    share = certain / jnp.sum(certain, axis=0)
    lengths = jnp.arange(len(own)).reshape(-1, *(1,) * (own.ndim - 1))
    return jnp.sum(share * own, axis=0), jnp.mean(jnp.sum(share * lengths, axis=0))


# --- of states


def state_values(critics: MLP, policy: Policy, states: Array) -> Array:
    """Of each model's states [H, M, P, d] by its own critic, [H, M, P]."""
    steps, models, particles = states.shape[:3]
    value = critics(policy.inputs(policy.task.features(by_model(states))))[..., 0]
    return jnp.moveaxis(value.reshape(models, steps, particles), 1, 0)


def traced(reward: Array, alive: Array, later: Array, discount: float, trace: float | Array) -> Array:
    """TD(lambda) targets [H, M, P], from rewards, who lives after each step, and the values there."""

    def step(target: Array, here: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        reward, alive, later = here
        target = reward + discount * alive * ((1 - trace) * later + trace * target)
        return target, target

    return jax.lax.scan(step, later[-1], (reward, alive, later), reverse=True)[1]
