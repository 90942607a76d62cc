"""Value expansion: the targets of critics are rolled on under the models before a critic is asked.

A transition goes on from where it led, by the policy as it is now, for up to H steps on its own model. MVE (Feinberg et
al. 2018) takes the longest of these futures. STEVE (Buckman et al. 2018) takes all, weighed by how little the heads of
the ensemble and the twins disagree about each.
"""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from cdpo.dynamics.models import ModelSet, sampled_models
from cdpo.dynamics.replay import Experience
from cdpo.solvers.critics import Futures, by_model
from cdpo.solvers.policy import Policy

Expansion = Literal["none", "mve", "steve"]


def expand(
    kind: Expansion, policy: Policy, models: ModelSet, batches: Experience, key: Array, *, steps: int, discount: float
) -> Futures:
    """How batches [K, M, B] go on: by the longest way alone, or by all, with those of the heads beside their own."""
    shape = batches.reward.shape
    flat = jax.tree.map(by_model, batches)
    own = futures(policy, models, flat, key, steps=steps, discount=discount)

    def as_given(leaf: Array) -> Array:
        """[L, M, K * B, ...] -> [L, K, M, B, ...]."""
        return jnp.moveaxis(leaf.reshape(-1, shape[1], shape[0], shape[2], *leaf.shape[3:]), 1, 2)

    if kind == "mve":
        return jax.tree.map(lambda leaf: as_given(leaf[-1:])[:, None], own)
    heads = sampled_models(models.belief, models.belief.heads, "subset", key)

    def under(numbers: Array, gain: Array) -> Futures:
        """The same under one head. The same key gives the same noise: what differs is the model's."""
        head = eqx.tree_at(lambda m: (m.heads, m.gain), heads, (numbers[None], gain[None]))
        joined = jax.tree.map(lambda leaf: leaf.reshape(1, -1, *leaf.shape[2:]), flat)
        return futures(policy, head, joined, key, steps=steps, discount=discount)

    others = jax.vmap(under, out_axes=1)(heads.heads, heads.gain)  # [L, heads, 1, M * K * B]
    others = jax.tree.map(lambda leaf: jax.vmap(as_given, 1, 1)(leaf), others)
    return jax.tree.map(lambda a, b: jnp.concatenate([as_given(a)[:, None], b], axis=1), own, others)


def futures(policy: Policy, models: ModelSet, batch: Experience, key: Array, *, steps: int, discount: float) -> Futures:
    """Of a batch [M, B], each row on its model: after 0 to `steps` more steps, [steps + 1, M, B]."""

    def step(now: Futures, key: Array) -> tuple[Futures, Futures]:
        act, move = jax.random.split(key)
        action, density = policy.sample(now.next, act)
        following, reward, terminated = models.step(now.next, action, move)
        goes_on = now.discount > 0
        later = Futures(
            now.reward + jnp.where(goes_on, now.discount * reward, 0.0),
            jnp.where(goes_on[..., None], following, now.next),
            now.discount * discount * (1 - terminated),
            now.entropy - jnp.where(goes_on, now.discount * density, 0.0),
        )
        return later, later

    begin = Futures(batch.reward, batch.next, batch.discount, jnp.zeros_like(batch.reward))
    _, later = jax.lax.scan(step, begin, jax.random.split(key, steps))
    return jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), begin, later)
