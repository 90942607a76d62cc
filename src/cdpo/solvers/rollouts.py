"""Imagined rollouts: batched over models and particles, a trajectory on one model throughout."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cdpo.dynamics.models import ModelSet
from cdpo.dynamics.replay import Experience, Transition
from cdpo.solvers.base import Starts
from cdpo.solvers.policy import Policy
from cdpo.tasks import Task

_NEGLIGIBLE = 0.05  # discounted weight at which imagined episodes are cut
_JUDGED = 64  # rollouts by which a policy is judged on each model


def imagine(
    policy: Policy, models: ModelSet, starts: Starts, key: Array, *, particles: int, horizon: int
) -> Transition:
    """Transitions [horizon, M, particles]; a particle whose task ends begins anew."""

    def step(observation: Array, key: Array) -> tuple[Array, Transition]:
        act, move, fresh = jax.random.split(key, 3)
        action, _ = policy.sample(observation, act)
        following, reward, terminated = models.step(observation, action, move)
        again = starts.draw(fresh, terminated.shape)
        carried = jnp.where(terminated[..., None] > 0, again, following)
        return carried, Transition(observation, action, reward, following, terminated)

    first, rest = jax.random.split(key)
    begin = starts.draw(first, (models.count, particles))
    return jax.lax.scan(step, begin, jax.random.split(rest, horizon))[1]


def n_step(taken: Transition, steps: int, discount: float | Array, length: Array | None = None) -> Experience:
    """Transitions with time as the leading axis, each with the discounted rewards of `steps` from there on.

    Less where the rollout, or the first `length` steps of it, or the task ends before.
    """
    reward, following, weight = taken.reward, taken.next, discount * (1 - taken.terminated)
    count = jnp.ones_like(reward)
    last = (reward.shape[0] if length is None else length) - 1
    later = jnp.arange(reward.shape[0])
    for _ in range(steps - 1):
        # One step more for all that have not ended: their sums begin to hold the reward of the step after their last.
        later = later + 1
        goes_on = (later <= last).reshape(-1, *(1,) * (reward.ndim - 1))
        index = jnp.minimum(later, last)
        reward = reward + jnp.where(goes_on, weight * taken.reward[index], 0.0)
        count = count + jnp.where(goes_on, weight, 0.0)
        following = jnp.where(goes_on[..., None] & (weight > 0)[..., None], taken.next[index], following)
        weight = jnp.where(goes_on, weight * discount * (1 - taken.terminated[index]), weight)
    return Experience(taken.observation, taken.action, reward, following, weight, count)


def foresight(task: Task, discount: float) -> int:
    """Steps after which the rest of an imagined episode hardly counts."""
    steps = math.log(_NEGLIGIBLE) / math.log(discount) if discount > 0 else 1
    return max(1, min(int(steps), task.horizon))


class Outlook(NamedTuple):
    """What a policy expects under one model from the initial states."""

    value: Array  # [], discounted
    states: Array  # [sets, S, d], independent draws from its discounted visitation


def look_ahead(
    policy: Policy,
    model: ModelSet,
    starts: Starts,
    key: Array,
    *,
    discount: float,
    horizon: int,
    particles: int,
    sets: int,
    states: int,
) -> Outlook:
    """Roll `policy` out under the one model of a set; each set of states comes from trajectories of its own."""

    def step(carry: tuple[Array, Array], key: Array) -> tuple[tuple[Array, Array], tuple[Array, Array, Array]]:
        observation, alive = carry
        act, move = jax.random.split(key)
        action, _ = policy.sample(observation, act)
        following, reward, terminated = model.step(observation, action, move)
        return (following, alive * (1 - terminated)), (observation, reward * alive, alive)

    begin, rest, choice = jax.random.split(key, 3)
    first = starts.only_initial().draw(begin, (1, particles))
    start = (first, jnp.ones((1, particles)))
    _, (observed, reward, alive) = jax.lax.scan(step, start, jax.random.split(rest, horizon))
    weight = discount ** jnp.arange(horizon)
    value = jnp.mean(jnp.sum(weight[:, None, None] * reward, axis=0))
    # Visits by set: [sets, horizon * particles / sets]
    chance = (weight[:, None] * alive[:, 0]).reshape(horizon, sets, -1).swapaxes(0, 1).reshape(sets, -1)
    places = observed[:, 0].reshape(horizon, sets, -1, first.shape[-1]).swapaxes(0, 1)
    places = places.reshape(sets, -1, first.shape[-1])
    # Inverse transform with evenly spaced points: less variance than independent draws.
    cumulated = jnp.cumsum(chance, axis=-1)
    points = (jnp.arange(states) + jax.random.uniform(choice, (sets, 1))) / states * cumulated[:, -1:]
    index = jnp.clip(jax.vmap(jnp.searchsorted)(cumulated, points), 0, chance.shape[-1] - 1)
    return Outlook(value, jnp.take_along_axis(places, index[..., None], axis=1))


def model_values(policy: Policy, models: ModelSet, starts: Starts, key: Array, discount: float) -> Array:
    """What a policy expects under each of the models alone, [M]; with the same key the noise is the same for all."""
    steps = foresight(models.belief.task, discount)

    def value(number: Array) -> Array:
        alone = {"horizon": steps, "particles": _JUDGED, "sets": 1, "states": 1}
        return look_ahead(policy, models.only(number), starts, key, discount=discount, **alone).value

    return jax.vmap(value)(jnp.arange(models.count))
