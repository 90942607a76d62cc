"""Calibration: how far the truth lies from the reference, told by the heads' disagreement (Kuleshov et al. 2018).

The heads' spread says where the model is ignorant, not by how much. Noise must not pass for ignorance, which sampled
models would act out, so the width has two parts:

    width(s, a)^2 = (scale * spread(s, a))^2 + (noise(s, a))^2

Its size is fitted for each dimension on held-out rows: 90% of the truth lies within as many widths as of a Gaussian
variable within deviations, 1.64. One number it has to be, as sampled models act it out; were it the root mean square, a
few large errors would drive them apart. Errors are no Gaussian variables, so how many widths the intervals of other
levels reach is fitted as well, the whole map from level to reach.
"""

from statistics import NormalDist
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import ndtri

from cdpo.dynamics.ensemble import Ensemble, Prediction
from cdpo.dynamics.replay import Transition
from cdpo.tasks import Task

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
_FITTED = 0.9
GAUSSIAN = tuple(NormalDist().inv_cdf((1 + level) / 2) for level in LEVELS)  # deviations
_SHARES = (0.0, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.4, 2.0)  # of the noise, tried against the spread
_FLOOR = 1e-6  # of a width in z-scores
_DOUBT = 0.01  # nats per nat of scaling
_ALIKE = 5.0  # rows that follow each other and tell as much as one draw
_TRUSTED = 10.0  # rows at which what is fitted counts as much as no scaling, and the reach of a Gaussian variable


class Calibration(NamedTuple):
    """For each target dimension."""

    scale: Array  # [o], of the heads' difference to the reference
    noise: Array  # [o], of the predicted noise, or the noise itself in z-scores for deterministic heads
    reach: Array  # [levels, o], widths from the reference to the ends of the central intervals at `LEVELS`

    @classmethod
    def gaussian(cls, scale: Array, noise: Array) -> Self:
        """Whose intervals reach as far as those of a Gaussian variable."""
        return cls(scale, noise, jnp.broadcast_to(jnp.array(GAUSSIAN)[:, None], (len(LEVELS), *scale.shape)))

    @classmethod
    def none(cls, outputs: int) -> Self:
        """Before any data."""
        return cls.gaussian(jnp.ones(outputs), jnp.zeros(outputs))

    def reach_of(self, level: float) -> Array:
        """Widths to the ends of the central interval at a level in (0, 1), [o].

        Between the levels of the map as a straight line over the reach of a Gaussian variable; beyond the last of them
        as many times that as there.
        """
        deviations = ndtri((1 + level) / 2)
        known = jnp.array([0.0, *GAUSSIAN])
        inside = jax.vmap(lambda reach: jnp.interp(deviations, known, jnp.concatenate([jnp.zeros(1), reach])))
        return inside(self.reach.T) * jnp.maximum(deviations / GAUSSIAN[-1], 1.0)


class Residuals(NamedTuple):
    """What the ensemble said of transitions that it did not train on, in z-scores [B, o]."""

    error: Array  # truth minus reference
    spread: Array  # root mean square of the heads around the reference
    noise: Array | None  # of Gaussian heads


def spread_of(prediction: Prediction) -> Array:
    """Root mean square distance of the heads to the reference, [B, o], from predictions [members, B, o]."""
    return jnp.sqrt(jnp.mean((prediction.mean[1:] - prediction.mean[:1]) ** 2, axis=0))


def residuals(ensemble: Ensemble, task: Task, transition: Transition) -> Residuals:
    """Of every member on some transitions [B]."""
    seen = ensemble.encode(task, transition.observation, transition.action)
    prediction = ensemble.read(ensemble.net(seen))
    error = ensemble.target(transition) - prediction.mean[0]
    noise = None if prediction.deviation is None else prediction.deviation[0]
    return Residuals(error, spread_of(prediction), noise)


def calibrate(held: Residuals, count: Array) -> Calibration:
    """From residuals on rows by which models are judged, of which `count` are distinct and held out.

    How much of the width is noise is chosen by likelihood, which sees whether errors are larger where the spread is;
    the size of the whole, and its reach at each level, by coverage.
    """
    base = jnp.sqrt(jnp.mean(held.error**2, axis=0)) if held.noise is None else held.noise
    shares = jnp.asarray(_SHARES)[:, None, None]
    widths = jnp.sqrt(held.spread**2 + (shares * base) ** 2 + _FLOOR**2)  # [shares, B, o]
    # The scale that maximises a Gaussian likelihood has a closed form; what is left of the likelihood ranks the shares.
    log_scale = 0.5 * jnp.log(jnp.mean((held.error / widths) ** 2, axis=1))
    surprise = log_scale + jnp.mean(jnp.log(widths), axis=1)  # [shares, o]
    apart = jnp.abs(held.error) / widths
    # Of n draws the k-th smallest is above a share k / (n + 1) of others, not k / n (Vovk et al. 2005).
    draws = jnp.maximum(count / _ALIKE, 1.0)
    levels = jnp.minimum(jnp.array(LEVELS) * (1 + 1 / draws), 1.0)
    factors = jnp.quantile(apart, levels[LEVELS.index(_FITTED)], axis=1) / ndtri((1 + _FITTED) / 2)
    factors = jnp.clip(factors, 0.1, 100.0)
    # Where the spread hardly varies all shares are as likely: the least scaling decides.
    best = jnp.argmin(surprise + _DOUBT * jnp.abs(jnp.log(factors)), axis=0)
    share = jnp.asarray(_SHARES)[best]
    trust = count / (count + _TRUSTED)
    whole = jnp.take_along_axis(factors, best[None], axis=0)[0]
    factor = whole**trust
    kept = Calibration.gaussian(factor, factor * share * (base if held.noise is None else 1.0))
    reach = jnp.quantile(jnp.take_along_axis(apart, best[None, None], axis=0)[0], levels, axis=0) / whole
    return kept._replace(reach=kept.reach * (reach / kept.reach) ** trust)


def width_of(calibration: Calibration, spread: Array, noise: Array | None) -> Array:
    """Standard deviation of the truth around the reference, in z-scores [..., o]."""
    noise = calibration.noise * (1.0 if noise is None else noise)
    return jnp.sqrt((calibration.scale * spread) ** 2 + noise**2 + _FLOOR**2)


def coverage(some: Residuals, calibration: Calibration | None) -> Array:
    """Share of the truth inside the central intervals at `LEVELS`, [levels, o].

    None: by the spread as it is, and by what heads say of noise, as of a Gaussian variable.
    """
    if calibration is None:
        outputs = some.error.shape[-1]
        calibration = Calibration.gaussian(jnp.ones(outputs), jnp.full(outputs, float(some.noise is not None)))
    width = width_of(calibration, some.spread, some.noise)
    return jnp.mean(jnp.abs(some.error) <= calibration.reach[:, None] * width, axis=1)


def coverage_metrics(some: Residuals, calibration: Calibration, where: str) -> dict[str, Array]:
    """Coverage of the 50% and 90% intervals before and after calibration, and the map of all levels."""
    before = jnp.mean(coverage(some, None), axis=-1)
    after = jnp.mean(coverage(some, calibration), axis=-1)
    half, most = LEVELS.index(0.5), LEVELS.index(0.9)
    return {
        f"coverage50_{where}_raw": before[half],
        f"coverage90_{where}_raw": before[most],
        f"coverage50_{where}": after[half],
        f"coverage90_{where}": after[most],
        f"coverage_map_{where}": after,
    }
