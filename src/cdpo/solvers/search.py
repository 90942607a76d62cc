"""Search without gradients: the cross-entropy method, and path integrals (MPPI)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cdpo.errors import UserError
from cdpo.noise import normal
from cdpo.told import Told

_LEAST = 0.05  # of the first deviation: a search never looks less wide


@dataclass(frozen=True)
class SearchSettings(Told, shaping=("colour",), zero=("colour",)):
    """How candidates are drawn, and what becomes of them."""

    method: Literal["cem", "mppi"] = "cem"
    """Go on from mean and spread of the best candidates, or of all of them weighted by what they are worth."""
    iterations: int = 2
    """Times that candidates are drawn."""
    candidates: int = 16
    """Drawn each time; the first is where the search stands."""
    elites: int = 4
    """Best candidates that the cross-entropy method goes on from."""
    sharpness: float = 3.0
    """Of MPPI's weights: by how much the logarithm falls at the distance that candidates have from the best."""
    colour: float = 0.0
    """Exponent with which the power of the noise of actions falls with its frequency: 0 white, 2 as in iCEM."""

    def __post_init__(self) -> None:
        """Elites are some of the candidates."""
        super().__post_init__()
        if self.elites > self.candidates:
            raise UserError(f"{self.part}.elites must be at most the {self.candidates} candidates, not {self.elites}")


class Found(NamedTuple):
    """By a search, or by as many as its leading axes say."""

    best: Array  # [...], of the start, all candidates, and where the search ended
    value: Array  # [], what it is worth
    first: Array  # [], what the start was worth


class _Standing(NamedTuple):
    mean: Array  # [...]
    spread: Array  # [...]
    best: Array  # [...]
    value: Array  # []


def search(
    score: Callable[[Array], Array], start: Array, deviation: Array, key: Array, settings: SearchSettings
) -> Found:
    """The best of candidates [N, ...] around `start` [...] by their scores [N], larger being better.

    `deviation` is that of the first draws and broadcasts to the start. Noise is coloured along the first axis of a
    start [H, m]. A score that is no number is worth nothing.
    """
    widest = jnp.broadcast_to(deviation, start.shape)
    shape = (settings.candidates, *start.shape)

    def judged(candidates: Array, best: Array, value: Array) -> tuple[Array, Array, Array]:
        """What candidates are worth, and the best so far with them."""
        worth = score(candidates)
        worth = jnp.where(jnp.isfinite(worth), worth, -jnp.inf)
        top = jnp.argmax(worth)
        return worth, jnp.where(worth[top] > value, candidates[top], best), jnp.maximum(worth[top], value)

    def step(at: _Standing, key: Array) -> tuple[_Standing, Array]:
        noise = coloured(key, shape, settings.colour) if start.ndim == 2 else normal(key, shape)
        drawn = at.mean + at.spread * noise.at[0].set(0.0)
        worth, best, value = judged(drawn, at.best, at.value)
        mean, spread = _moved(drawn, worth, settings)
        return _Standing(mean, jnp.maximum(spread, _LEAST * widest), best, value), worth[0]

    begin = _Standing(start, widest, start, jnp.asarray(-jnp.inf))
    end, stood = jax.lax.scan(step, begin, jax.random.split(key, settings.iterations))
    _, best, value = judged(end.mean[None], end.best, end.value)
    return Found(best, value, stood[0])


def _moved(drawn: Array, worth: Array, settings: SearchSettings) -> tuple[Array, Array]:
    """Where a search stands once it knows what candidates [N, ...] are worth, and how wide it looks next."""
    if settings.method == "cem":
        elites = drawn[jax.lax.top_k(worth, settings.elites)[1]]
        return jnp.mean(elites, axis=0), jnp.std(elites, axis=0)
    usable = jnp.isfinite(worth)
    below = jnp.where(usable, worth - jnp.max(worth), 0.0)
    scale = jnp.sqrt(jnp.sum(below**2) / jnp.maximum(jnp.sum(usable), 1))
    weight = jnp.where(usable, jnp.exp(settings.sharpness * below / jnp.maximum(scale, 1e-8)), 0.0)
    weight = weight / jnp.maximum(jnp.sum(weight), 1e-8)
    mean = jnp.tensordot(weight, drawn, axes=1)
    return mean, jnp.sqrt(jnp.tensordot(weight, (drawn - mean) ** 2, axes=1))


def coloured(key: Array, shape: tuple[int, ...], colour: float) -> Array:
    """Normal noise [..., H, m] of variance one, whose power along H falls with the frequency to the power `colour`."""
    if colour == 0:
        return normal(key, shape)
    length = 2 * shape[-2]  # twice as long, and cut: the end must not join the beginning
    frequency = jnp.fft.rfftfreq(length)
    amplitude = jnp.maximum(frequency, 1 / length) ** (-colour / 2)
    real, imaginary = normal(key, (2, *shape[:-2], len(frequency), shape[-1]))
    noise = jnp.fft.irfft(amplitude[:, None] * (real + 1j * imaginary), length, axis=-2)[..., : shape[-2], :]
    power = amplitude[0] ** 2 + 4 * jnp.sum(amplitude[1:-1] ** 2) + amplitude[-1] ** 2
    return noise * (length / jnp.sqrt(power))
