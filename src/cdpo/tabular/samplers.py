"""Exact gamma, Dirichlet and Student t draws for the simulation.

`jax.random.gamma` runs a loop of its own for every element, which was much of the time of a simulation. Here gamma
draws are vectorised: only the few rejected proposals are drawn again.
"""

import jax
import jax.numpy as jnp
from jax import Array

from cdpo.noise import fold, normal_from, uniform_pairs


def dirichlet(key: Array, concentration: Array, *, smallest: float) -> Array:
    """Dirichlet draws over the last axis of `concentration`, all entries of which are at least `smallest` > 0.

    Below one, weights are drawn by their logarithms: at a concentration of .001 nine weights of ten are below every
    number of float32, and a row of such has no sum. Where `smallest` excludes that, nothing is spent on it.
    """
    if smallest < 1:
        return jax.nn.softmax(log_gamma(key, concentration), axis=-1)
    weight = standard_gamma(key, concentration)
    return weight / jnp.sum(weight, axis=-1, keepdims=True)


def log_gamma(key: Array, shape: Array) -> Array:
    """The logarithm of a Gamma(shape, 1) draw for every entry of `shape` > 0.

    Shapes below one are drawn at shape + 1 and scaled by U^(1/shape) (Marsaglia and Tsang, 2000, section 6).
    """
    below = shape < 1
    uniform, _ = uniform_pairs(key, shape.shape, stream=1)
    logs = jnp.log(standard_gamma(key, jnp.where(below, shape + 1, shape)))
    return jnp.where(below, logs + jnp.log(uniform) / shape, logs)


def standard_gamma(key: Array, shape: Array) -> Array:
    """Gamma(shape, 1) for every entry of `shape` >= 1, by Marsaglia and Tsang (2000).

    Shape exactly one, the weight of a next state never seen under a flat prior, is an exponential and needs no
    rejection.
    """
    flat = shape.reshape(-1)
    slots = min(8, flat.shape[0])

    def redraw(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        draws, attempt = carry
        rejected = draws < 0
        # The r-th rejected element takes the r-th fresh proposal. As matrices, gathering and scattering are
        # products, which XLA does not fuse: fused, it would repeat the proposals for every element.
        rank = jnp.where(rejected, jnp.cumsum(rejected) - 1, slots)
        place = (rank == jnp.arange(slots)[:, None]).astype(jnp.float32)  # [slots, count]
        wanted = jnp.dot(place, flat, precision="highest")
        fresh = _propose(fold(key, attempt), jnp.where(wanted > 0, wanted, 1.0))
        return jnp.where(rank < slots, jnp.dot(fresh, place, precision="highest"), draws), attempt + 1

    draws, _ = jax.lax.while_loop(lambda carry: jnp.any(carry[0] < 0), redraw, (_propose(key, flat), jnp.array(0)))
    return draws.reshape(shape.shape)


def student_t(key: Array, freedom: Array) -> Array:
    """Student t with `freedom` degrees, of the same shape, by Bailey's (1994) polar method: no rejection."""
    flat = freedom.reshape(-1)

    def draw(_: tuple[Array, Array]) -> tuple[Array, Array]:
        radial, angular = uniform_pairs(key, flat.shape)
        radius = jnp.sqrt(flat * jnp.expm1(-2 / flat * jnp.log(radial)))
        return jnp.array(True), radius * jnp.cos(2 * jnp.pi * angular)

    # A loop that is left after one turn, which XLA cannot know. Otherwise it fuses the draws into the sums that use
    # them, and there they are computed one at a time, without vector instructions.
    done = flat[0] < 0
    return jax.lax.while_loop(lambda carry: ~carry[0], draw, (done, jnp.zeros_like(flat)))[1].reshape(freedom.shape)


def _propose(key: Array, shape: Array) -> Array:
    """One proposal for each shape >= 1; a rejected one is marked by a negative number."""
    first, second = uniform_pairs(key, shape.shape)
    normal, log_uniform = normal_from(first), jnp.log(second)
    d = shape - 1 / 3
    v = (1 + normal / (3 * jnp.sqrt(d))) ** 3
    log_v = jnp.log(jnp.where(v > 0, v, 1.0))
    fits = (v > 0) & (log_uniform < 0.5 * normal**2 + d * (1 - v + log_v))
    return jnp.where(shape == 1, -log_uniform, jnp.where(fits, d * v, -1.0))
