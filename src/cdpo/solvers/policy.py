"""Policies: squashed Gaussians, on the device for learning and on the host for acting."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cdpo.dynamics.networks import MLP, Normaliser, rescale_inputs
from cdpo.tasks import Task

_LOG_DEVIATION = (-5.0, 1.0)
# Of the mean before squashing: tanh(2.5) is 0.987, and its slope not yet lost. Without a limit the entropy of actions
# that saturate, as those of a good swing-up do, falls without bound.
REACH = 2.5
_SATURATED = 1 - 1e-6
_ON_HOST: dict[str, Callable[[np.ndarray], np.ndarray]] = {"relu": lambda x: np.maximum(x, 0.0), "tanh": np.tanh}
_FAR = 1.6  # in KL; from about there on Pinsker's bound of the total variation is not the best one


class Gaussian(NamedTuple):
    """Before squashing, independent parts [..., m]."""

    mean: Array
    log_deviation: Array


class Policy(eqx.Module):
    """tanh of a Gaussian whose mean and deviation are functions of the state.

    It acts in the model's action space [-1, 1]^m; the environment gets the first parts of that.
    """

    net: MLP
    inputs: Normaliser
    task: Task = eqx.field(static=True)

    @classmethod
    def create(cls, task: Task, inputs: Normaliser, hidden: Sequence[int], key: Array, extra: int = 0) -> Self:
        """Untrained: near zero action, with deviation near one. `extra` parts are chosen beside the action."""
        net = MLP.create(key, (inputs.mean.shape[-1], *hidden, 2 * (task.actions + extra)), activation="relu")
        net = eqx.tree_at(lambda n: n.weights[-1], net, 0.01 * net.weights[-1])
        return cls(net, inputs, task)

    @property
    def actions(self) -> int:
        """m."""
        return self.net.biases[-1].shape[-1] // 2

    def __call__(self, observation: Array) -> Gaussian:
        """At observations [..., B, d]."""
        mean, raw = jnp.split(self.net(self.inputs(self.task.features(observation))), 2, axis=-1)
        return Gaussian(_soft_clip(mean, -REACH, REACH, jnp), _soft_clip(raw, *_LOG_DEVIATION, jnp))

    def sample(self, observation: Array, key: Array) -> tuple[Array, Array]:
        """Actions [..., B, m], and the log-densities [..., B] of what the environment gets of them."""
        return squashed(self(observation), key, self.task.actions)

    def renormalised(self, inputs: Normaliser) -> Self:
        """The same policy with another normaliser."""
        net = rescale_inputs(self.net, self.inputs, inputs)
        return eqx.tree_at(lambda p: (p.net, p.inputs), self, (net, inputs))


def squashed(before: Gaussian, key: Array, parts: int) -> tuple[Array, Array]:
    """Draws after squashing [..., m], and the log-densities [...] of their first `parts`.

    Noise on the environment's actions explores. What a policy chooses beside them it only imagines, and to be rewarded
    for noise there would spend on it what is meant for the actions.
    """
    noise = jax.random.normal(key, before.mean.shape)
    raw = before.mean + jnp.exp(before.log_deviation) * noise
    density = -0.5 * noise**2 - before.log_deviation - 0.5 * jnp.log(2 * jnp.pi)
    # log(1 - tanh(x)^2) in a form that does not underflow
    squash = 2 * (jnp.log(2.0) - raw - jax.nn.softplus(-2 * raw))
    return jnp.tanh(raw), jnp.sum((density - squash)[..., :parts], axis=-1)


def entropy_range() -> tuple[float, float]:
    """The least and the largest entropy of a part of an action, after squashing.

    The largest is that of uniform actions. The least is that of the least noise where it is squashed most.
    """
    squash = 2 * (math.log(2) - REACH - math.log1p(math.exp(-2 * REACH)))
    return _LOG_DEVIATION[0] + 0.5 * math.log(2 * math.pi * math.e) + squash, math.log(2)


def unsquashed(action: Array) -> Array:
    """Actions before squashing; of those at the bound, where single precision has lost it, some that lead there."""
    return jnp.arctanh(jnp.clip(action, -_SATURATED, _SATURATED))


def log_density(before: Gaussian, raw: Array) -> Array:
    """Of actions before squashing, [...]. Squashing adds the same under any policy: no ratio or gradient sees it."""
    noise = (raw - before.mean) * jnp.exp(-before.log_deviation)
    return jnp.sum(-0.5 * noise**2 - before.log_deviation - 0.5 * jnp.log(2 * jnp.pi), axis=-1)


def noise_error(log_deviation: Array, held: Array | float) -> Array:
    """Squared distance to the logarithm of the deviation that is to be held, on average over parts [...]."""
    return jnp.mean((log_deviation - jnp.log(held)) ** 2, axis=-1)


def kl_divergence(p: Gaussian, q: Gaussian) -> Array:
    """KL(p || q), [...]. Squashing both by the same map does not change it."""
    ratio = p.log_deviation - q.log_deviation
    distance = (p.mean - q.mean) * jnp.exp(-q.log_deviation)
    return jnp.sum(0.5 * (jnp.exp(2 * ratio) + distance**2 - 1) - ratio, axis=-1)


def mean_divergence(p: Gaussian, q: Gaussian) -> Array:
    """E KL(p || q) over states [S], of each as `counted`; zero over no states."""
    kl = counted(kl_divergence(p, q))
    return jnp.sum(kl) / max(kl.size, 1)


def counted(kl: Array) -> Array:
    """What the KL of a single state counts for in a mean over states: never less than 2 TV^2.

    Up to 1.6 it is the KL itself (Pinsker's inequality). Beyond, where TV^2 <= 1 - exp(-KL) says more (Bretagnolle and
    Huber), it grows like the distance and no longer like its square: a state at which a nearly deterministic policy
    changed its mind weighs hundreds, and one among a thousand would outweigh all others, in the mean and in every
    gradient.
    """
    return jnp.where(kl < _FAR, kl, 2 * jnp.sqrt(_FAR * jnp.maximum(kl, _FAR)) - _FAR)


class HostPolicy:
    """A policy in NumPy: beside a real environment a call into a compiled program costs more than the network."""

    def __init__(self, policy: Policy) -> None:
        """From a policy of one seed."""
        net, inputs = jax.device_get((policy.net, policy.inputs))
        self._features: Callable[[Any], Any] = policy.task.features
        # The normaliser is folded into the first layer.
        first = net.weights[0] / inputs.deviation[:, None]
        bias = net.biases[0] - (inputs.mean / inputs.deviation) @ net.weights[0]
        self._layers = [(first, bias), *zip(net.weights[1:], net.biases[1:], strict=True)]
        self._activation = _ON_HOST[net.activation]
        self._actions = policy.task.actions
        self._all = policy.actions

    def begin(self, episode: int) -> None:
        """Nothing to forget: what it does depends on what it sees alone."""

    def __call__(self, observation: np.ndarray, noise: np.ndarray | None = None) -> np.ndarray:
        """The action in [-1, 1] at observations [..., d]: the mode, or a draw with standard normal `noise` [..., m]."""
        x: np.ndarray = self._features(np.asarray(observation, np.float32))
        for weight, bias in self._layers[:-1]:
            x = self._activation(x @ weight + bias)
        weight, bias = self._layers[-1]
        output = x @ weight + bias
        raw = _soft_clip(output[..., : self._actions], -REACH, REACH, np)
        if noise is not None:
            scale = output[..., self._all : self._all + self._actions]
            raw = raw + np.exp(_soft_clip(scale, *_LOG_DEVIATION, np)) * noise
        return np.tanh(raw)


def _soft_clip(x: Any, low: float, high: float, xp: Any) -> Any:
    """Into (low, high), with slope one in the middle."""
    middle, half = (low + high) / 2, (high - low) / 2
    return middle + half * xp.tanh((x - middle) / half)
