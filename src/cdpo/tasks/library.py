"""The tasks: what the agent knows of each, as differentiable functions that broadcast over leading axes.

Each function says again, in JAX, what the environment computes on the host; the tests hold the two against each other.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from cdpo.tasks.base import Task, Transition, identity
from cdpo.tasks.lqr import BOUND, SYSTEM
from cdpo.tasks.making import Maker
from cdpo.tasks.pendulum import DT, FRICTION, SWING, TORQUE
from cdpo.tasks.registration import IDS

# --- small mathematics


def namespace(array: Any) -> Any:
    """NumPy for its arrays, else JAX: beside a real environment a policy acts in NumPy."""
    return np if isinstance(array, np.ndarray) else jnp


def _square(vector: Array) -> Array:
    """|v|^2 over the last axis."""
    return jnp.sum(vector * vector, axis=-1)


def _norm(vector: Array) -> Array:
    """|v| over the last axis, with gradient 0 at 0, where that of the plain norm is not a number."""
    square = _square(vector)
    positive = square > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1.0)), 0.0)


def _tolerance(value: Array, low: float, high: float, margin: float) -> Array:
    """1 within [low, high], outside a Gaussian that falls to 0.1 at one margin."""
    outside = jnp.maximum(jnp.maximum(low - value, value - high), 0.0) / margin
    return jnp.exp(np.log(0.1) * outside**2)


def never(observation: Array, action: Array, following: Array) -> Array:
    """No transition ends an episode."""
    return jnp.zeros(jnp.broadcast_shapes(observation.shape[:-1], action.shape[:-1], following.shape[:-1]), bool)


# --- inverted-pendulum


def _falls(observation: Array, action: Array, following: Array) -> Array:
    """The pole leans by 0.2 rad or more (or by no number at all)."""
    fallen = ~(jnp.abs(following[..., 1]) < 0.2)
    return fallen | never(observation, action, following)


def _balance_reward(observation: Array, action: Array, following: Array) -> Array:
    up = ~_falls(observation, action, following)
    return up.astype(following.dtype) - 0.001 * _square(action)


# --- cartpole-swingup


def _cartpole_features(observation: Array) -> Array:
    """(x, cos, sin, x', theta')."""
    xp = namespace(observation)
    place, angle = observation[..., :1], observation[..., 1:2]
    return xp.concatenate((place, xp.cos(angle), xp.sin(angle), observation[..., 2:]), axis=-1)


def _cartpole_reward(observation: Array, action: Array, following: Array) -> Array:
    place, angle = following[..., 0], following[..., 1]
    across = place + 0.6 * jnp.sin(angle)
    below = 0.6 * (1 - jnp.cos(angle))
    return jnp.exp(-(across**2 + below**2) / 0.6**2) - 0.001 * _square(action)


# --- pendulum-swingup


def pendulum_step(state: Array, action: Array) -> Array:
    """The pendulum's exact dynamics: state (theta, theta') [..., 2] and action [..., 1] to the next state [..., 2]."""
    angle, velocity = state[..., 0], state[..., 1]
    torque = jnp.clip(action[..., 0], -1.0, 1.0)
    velocity = velocity + DT * (SWING * jnp.sin(angle) + TORQUE * torque - FRICTION * velocity)
    return jnp.stack((angle + DT * velocity, velocity), axis=-1)


def _pendulum_features(observation: Array) -> Array:
    """(cos, sin, theta')."""
    xp = namespace(observation)
    angle = observation[..., :1]
    return xp.concatenate((xp.cos(angle), xp.sin(angle), observation[..., 1:]), axis=-1)


def _pendulum_reward(observation: Array, action: Array, following: Array, *, penalty: float) -> Array:
    up = _tolerance(jnp.cos(following[..., 0]), 0.95, 1.0, 0.1) * _tolerance(following[..., 1], -0.5, 0.5, 0.5)
    return up + penalty * (_tolerance(action[..., 0], -0.1, 0.1, 0.1) - 1)


# --- pusher


def _pusher_reward(observation: Array, action: Array, following: Array) -> Array:
    tip, thing, goal = following[..., 14:17], following[..., 17:20], following[..., 20:23]
    return -_norm(thing - goal) - 0.5 * _norm(thing - tip) - 0.1 * _square(action)


# --- half-cheetah


def _cheetah_reward(observation: Array, action: Array, following: Array) -> Array:
    return following[..., 0] - 0.1 * _square(action)


# --- lqr


def lqr_step(state: Array, action: Array) -> Array:
    """The linear system without its noise: state [..., 3] and action [..., 2] to the mean next state [..., 3]."""
    return state @ SYSTEM.A.T.astype(np.float32) + jnp.clip(action, -BOUND, BOUND) @ SYSTEM.B.T.astype(np.float32)


def _lqr_reward(observation: Array, action: Array, following: Array) -> Array:
    """-(s'Qs + a'Ra)."""
    Q, R = SYSTEM.Q.astype(np.float32), SYSTEM.R.astype(np.float32)
    return -jnp.sum((observation @ Q) * observation, axis=-1) - jnp.sum((action @ R) * action, axis=-1)


# --- the tasks


def _task(
    name: str,
    id: str,
    observations: int,
    high: list[float],
    reward: Transition,
    *,
    terminates: Transition = never,
    features: Callable[[Array], Array] = identity,
    broad: list[float] | None = None,
    **settings: float,
) -> Task:
    """The task of one of our own environments; every range is symmetric."""
    horizon, bound = IDS[id][1], np.array(high, np.float32)
    box = None if broad is None else (-np.array(broad, np.float32), np.array(broad, np.float32))
    make = Maker(id, horizon, settings)
    return Task(name, make, observations, -bound, bound, horizon, reward, terminates, features, box)


def pendulum_task(penalty: float, name: str = "pendulum-swingup") -> Task:
    """The pendulum's swing-up with a penalty on actions."""
    return _task(
        name,
        "cdpo/PendulumSwingup-v0",
        2,
        [1.0],
        partial(_pendulum_reward, penalty=penalty),
        features=_pendulum_features,
        broad=[np.pi, 8.0],
        penalty=penalty,
    )


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        _task(
            "inverted-pendulum",
            "cdpo/InvertedPendulum-v0",
            4,
            [3.0],
            _balance_reward,
            terminates=_falls,
            broad=[0.9, 0.19, 1.0, 1.0],
        ),
        _task(
            "cartpole-swingup",
            "cdpo/CartpoleSwingup-v0",
            4,
            [3.0],
            _cartpole_reward,
            features=_cartpole_features,
            broad=[0.9, np.pi, 4.0, 10.0],
        ),
        pendulum_task(0.0),
        pendulum_task(0.1, "pendulum-swingup-0.1"),
        pendulum_task(0.2, "pendulum-swingup-0.2"),
        _task("pusher", "cdpo/Pusher-v0", 23, [2.0] * 7, _pusher_reward),
        _task("half-cheetah", "cdpo/HalfCheetah-v0", 18, [1.0] * 6, _cheetah_reward),
        _task("lqr", "cdpo/LQR-v0", 3, [BOUND] * 2, _lqr_reward, broad=[2.0] * 3),
    )
}
