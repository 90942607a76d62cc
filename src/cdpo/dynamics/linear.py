"""Linear members by exact Bayesian regression: the reference is the posterior's mean, the heads are draws from it.

For each target y, in z-scores, and the encoded input x with a one behind it for the intercept:

    y = x'w + e,   e ~ N(0, v),   w given v ~ N(0, v / PRIOR I),   v ~ InverseGamma(SHAPE, RATE)

The posterior is of the same family (Normal and inverse gamma), so there is nothing to stop, to average or to calibrate:
held-out rows are fitted as well, and every fit draws anew.
"""

from typing import NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.linalg import solve_triangular

from cdpo.dynamics.calibration import Calibration
from cdpo.dynamics.ensemble import Ensemble, Split, normalisers_of, unbounded
from cdpo.dynamics.networks import MLP
from cdpo.dynamics.replay import Replay
from cdpo.tasks import Task

PRIOR = 0.01  # rows that the prior of the weights is worth
SHAPE, RATE = 1.0, 1e-6  # of the noise: next to nothing is known, but that there is some


class Posterior(NamedTuple):
    """w given v ~ N(mean, v (factor' factor)^-1) and v ~ InverseGamma(shape, rate), for each of o targets."""

    mean: Array  # [p, o]
    factor: Array  # [p, p], upper triangular
    shape: Array  # []
    rate: Array  # [o]

    @classmethod
    def of(cls, inputs: Array, targets: Array, counted: Array) -> Self:
        """From rows [N, p] and [N, o], those that are `counted` [N].

        By the QR decomposition of the rows and not by their products: when a policy acts, actions follow states, and
        products would square how badly such data are conditioned.
        """
        rows, size = inputs.shape
        inputs, targets = jnp.where(counted[:, None], inputs, 0.0), jnp.where(counted[:, None], targets, 0.0)
        turned, factor = jnp.linalg.qr(jnp.concatenate([inputs, PRIOR**0.5 * jnp.eye(size)]))
        mean = solve_triangular(factor, turned[:rows].T @ targets)
        missed = jnp.sum((targets - inputs @ mean) ** 2, axis=0) + PRIOR * jnp.sum(mean**2, axis=0)
        return cls(mean, factor, SHAPE + jnp.sum(counted) / 2, RATE + missed / 2)

    @property
    def noise(self) -> Array:
        """E[v], [o]."""
        return self.rate / (self.shape - 1)

    def draw(self, key: Array, count: int) -> tuple[Array, Array]:
        """Weights [count, p, o] and variances of the noise [count, o]."""
        first, second = jax.random.split(key)
        variance = self.rate / jax.random.gamma(first, self.shape, (count, *self.rate.shape))
        normal = jax.random.normal(second, (count, *self.mean.shape))
        apart = jax.vmap(solve_triangular, in_axes=(None, 0))(self.factor, normal)
        return self.mean + jnp.sqrt(variance)[:, None] * apart, variance


def fit_linear(
    ensemble: Ensemble, replay: Replay, split: Split, *, task: Task, key: Array
) -> tuple[Ensemble, Calibration, dict[str, Array]]:
    """The posterior given all rows but those of the test.

    The scale of the heads is one: scaled by anything else they would no longer be draws from the posterior.
    """
    counted = replay.valid & ~split.member_of(2)
    normalisers = normalisers_of(ensemble, replay, task, counted)
    ensemble = eqx.tree_at(lambda e: (e.inputs, e.targets), ensemble, normalisers)
    everything = replay.transitions()
    seen = ensemble.encode(task, everything.observation, everything.action)
    seen = jnp.concatenate([seen, jnp.ones((replay.capacity, 1))], axis=-1)
    posterior = Posterior.of(seen, ensemble.target(everything), counted)
    weights, variances = posterior.draw(key, ensemble.members - 1)
    weights = jnp.concatenate([posterior.mean[None], weights])
    variances = jnp.concatenate([posterior.noise[None], variances])
    if ensemble.gaussian:
        weights = jnp.concatenate([weights, jnp.zeros_like(weights)], axis=-1)
        weights = weights.at[:, -1, variances.shape[-1] :].set(unbounded(jnp.log(variances)))
    net = MLP((weights[:, :-1],), (weights[:, -1],), ensemble.net.activation, ensemble.net.layer_norm)
    deviation = jnp.sqrt(posterior.noise)
    noise = jnp.ones_like(deviation) if ensemble.gaussian else deviation
    metrics = {"model_rows": jnp.sum(counted), "model_noise": jnp.mean(deviation)}
    fitted = eqx.tree_at(lambda e: (e.net, e.fits), ensemble, (net, ensemble.fits + 1))
    return fitted, Calibration.gaussian(jnp.ones_like(deviation), noise), metrics
