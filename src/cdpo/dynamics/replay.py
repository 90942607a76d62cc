"""Real transitions on the device."""

from typing import NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


class Transition(NamedTuple):
    """One step, or any batch of them. Actions are scaled to [-1, 1]."""

    observation: Array  # [..., d]
    action: Array  # [..., m]
    reward: Array  # [...]
    next: Array  # [..., d]
    terminated: Array  # [...], 1.0 where the task ended; a time limit is no end


class Experience(NamedTuple):
    """What a learner learns from: some steps in one. `next` is worth `discount` of its value."""

    observation: Array  # [..., d]
    action: Array  # [..., m], the first of the steps
    reward: Array  # [...], discounted sum over the steps
    next: Array  # [..., d], where the last of them led
    discount: Array  # [...], of what follows: 0 where the task ended
    steps: Array  # [...], how many steps, discounted as their rewards are


class Replay(eqx.Module):
    """All transitions of one seed, as rows [observation, action, reward, next, terminated, episode].

    Nothing here depends on how long the run is planned to be.
    """

    rows: Array  # [capacity, 2 d + m + 3]
    size: Array  # int32, rows that are filled
    observations: int = eqx.field(static=True)
    actions: int = eqx.field(static=True)

    @classmethod
    def empty(cls, observations: int, actions: int, capacity: int) -> Self:
        """No rows yet."""
        rows = jnp.zeros((capacity, row_width(observations, actions)))
        return cls(rows, jnp.zeros((), jnp.int32), observations, actions)

    @property
    def capacity(self) -> int:
        """Rows that fit."""
        return self.rows.shape[-2]

    @property
    def valid(self) -> Array:
        """Which rows are filled, [capacity]."""
        return jnp.arange(self.capacity) < self.size

    @property
    def episodes(self) -> Array:
        """The number of each row's episode, int32 [capacity]; a float32 is exact up to 2^24 of them."""
        return self.rows[..., -1].astype(jnp.int32)

    def append(self, rows: Array, count: Array) -> Self:
        """With the first `count` of `rows`; those after them are padding and must fit as well."""
        filled = jax.lax.dynamic_update_slice(self.rows, rows, (self.size, jnp.zeros((), jnp.int32)))
        return eqx.tree_at(lambda r: (r.rows, r.size), self, (filled, self.size + count.astype(jnp.int32)))

    def transitions(self, index: Array | slice = slice(None)) -> Transition:
        """The rows at `index`."""
        return split_rows(self.rows[index], self.observations, self.actions)

    def runs(self, index: Array, steps: int, among: Array) -> tuple[Transition, Array]:
        """Rows [...] and those after them, [steps, ...]; and how far each run counts, 1.0 or 0.0.

        A run ends with the episode, and before the first row that is not `among` [capacity].
        """
        ahead = index + jnp.arange(steps).reshape(-1, *(1,) * index.ndim)
        rows = jnp.minimum(ahead, self.capacity - 1)
        episodes = self.episodes[rows]
        follows = (episodes[1:] == episodes[:-1]) & (ahead[1:] < self.size) & among[rows[1:]]
        counts = jnp.concatenate([jnp.ones((1, *index.shape)), jnp.cumprod(follows.astype(jnp.float32), axis=0)])
        return self.transitions(rows), counts

    def draw(self, key: Array, shape: tuple[int, ...]) -> Transition:
        """Uniformly, with replacement."""
        return self.transitions(draw_below(key, shape, self.size))


def row_width(observations: int, actions: int) -> int:
    """Numbers in a row of the replay."""
    return 2 * observations + actions + 3


def split_rows(rows: Array, observations: int, actions: int) -> Transition:
    """The parts of rows [..., 2 d + m + 3], less the number of the episode."""
    d, m = observations, actions
    return Transition(rows[..., :d], rows[..., d : d + m], rows[..., d + m], rows[..., d + m + 1 : -2], rows[..., -2])


def episodes_of(rows: np.ndarray, observations: int) -> np.ndarray:
    """Numbers of episodes [n] for rows [n, 2 d + m + 2] that do not tell theirs.

    One begins where the row before ended the task, or did not lead to where this one begins.
    """
    d = observations
    led = (rows[1:, :d] == rows[:-1, -d - 1 : -1]).all(axis=-1) & (rows[:-1, -1] == 0)
    return np.concatenate([np.zeros(min(len(rows), 1)), np.cumsum(~led)]).astype(np.float32)


def draw_below(key: Array, shape: tuple[int, ...], size: Array) -> Array:
    """Uniform integers in [0, size), for a size that is known at run time only."""
    uniform = jax.random.uniform(key, shape)
    return jnp.minimum((uniform * size).astype(jnp.int32), jnp.maximum(size - 1, 0))
