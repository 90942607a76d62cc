"""Random numbers in one fused kernel: Threefry, and uniform and normal numbers from it.

JAX generates Threefry bits on a CPU by a rolled loop of many small kernels. That was most of the time of simulations
of finite MDPs, and of searches for a policy's parameters. Here the generator, the same Threefry-2x32 with 20 rounds, is
one expression that XLA fuses with what uses it.

A key that is drawn from or folded here is for nothing else: `jax.random.split` of it gives some of the same words.
"""

import math

import jax
import jax.numpy as jnp
from jax import Array

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def threefry(key: tuple[Array, Array], counter: tuple[Array, Array]) -> tuple[Array, Array]:
    """Threefry-2x32-20 (Salmon et al., 2011): two words of 32 random bits for each counter."""
    schedule = (*key, key[0] ^ key[1] ^ jnp.uint32(0x1BD11BDA))
    x, y = counter[0] + schedule[0], counter[1] + schedule[1]
    for group in range(5):
        for distance in _ROTATIONS[group % 2]:
            x = x + y
            y = ((y << distance) | (y >> (32 - distance))) ^ x
        x = x + schedule[(group + 1) % 3]
        y = y + schedule[(group + 2) % 3] + jnp.uint32(group + 1)
    return x, y


def fold(key: Array, index: Array | int) -> Array:
    """A new key for each index: what `jax.random.fold_in` is for, in one kernel."""
    words = jax.random.key_data(key)
    # The second counter word is odd here and even where numbers are drawn: the two never meet.
    new = threefry((words[0], words[1]), (jnp.asarray(index, jnp.uint32), jnp.uint32(1)))
    return jax.random.wrap_key_data(jnp.stack(new))


def uniform_pairs(key: Array, shape: tuple[int, ...], stream: int = 0) -> tuple[Array, Array]:
    """Two arrays of independent uniform numbers in the open interval (0, 1), on the midpoints of 2^23 cells.

    Streams of one key are independent of each other: cheaper than a key for each.
    """
    words = jax.random.key_data(key)
    counter = jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
    x, y = threefry((words[0], words[1]), (counter, jnp.full_like(counter, 2 * stream)))
    return (x >> 9) * 2.0**-23 + 2.0**-24, (y >> 9) * 2.0**-23 + 2.0**-24


def normal_from(uniform: Array) -> Array:
    """Standard normal quantiles."""
    return jnp.sqrt(2.0) * jax.lax.erf_inv(2 * uniform - 1)


def normal(key: Array, shape: tuple[int, ...]) -> Array:
    """Standard normal numbers. The second word of each pair is not used: joining both would undo the fusion."""
    return normal_from(uniform_pairs(key, shape)[0])
