"""Networks whose leading axes are ensembles, and the scaling of what they see."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

Activation = Literal["swish", "relu", "tanh"]
_ACTIVATIONS = {"swish": jax.nn.silu, "relu": jax.nn.relu, "tanh": jnp.tanh}
_LOUDEST = 5.0  # of the average norm of a first layer's rows: what a part may become by widening


class MLP(eqx.Module):
    """A perceptron, or as many of them as the leading axes of its parameters say.

    `weights[i]` is [..., in, out] and `biases[i]` [..., out]: members, models and twins are leading axes, and a batch
    [..., B, in] meets them by the rules of matmul. No vmap is needed to evaluate an ensemble.
    """

    weights: tuple[Array, ...]
    biases: tuple[Array, ...]
    activation: Activation = eqx.field(static=True)
    layer_norm: bool = eqx.field(static=True)

    @classmethod
    def create(
        cls,
        key: Array,
        sizes: Sequence[int],
        ensemble: tuple[int, ...] = (),
        *,
        activation: Activation = "swish",
        layer_norm: bool = False,
    ) -> Self:
        """Independent members of layer `sizes` (input first), weights of variance 1 / fan-in, biases zero."""
        weights = tuple(
            jax.random.truncated_normal(jax.random.fold_in(key, i), -2.0, 2.0, (*ensemble, fan_in, fan_out))
            * (1.14 / fan_in**0.5)  # truncation at two deviations leaves 0.88 of one
            for i, (fan_in, fan_out) in enumerate(pairwise(sizes))
        )
        biases = tuple(jnp.zeros((*ensemble, size)) for size in sizes[1:])
        return cls(weights, biases, activation, layer_norm)

    def __call__(self, x: Array) -> Array:
        """[..., B, in] -> [..., B, out]."""
        *hidden, last = zip(self.weights, self.biases, strict=True)
        for weight, bias in hidden:
            x = x @ weight + bias[..., None, :]
            if self.layer_norm:
                x = x - jnp.mean(x, axis=-1, keepdims=True)
                x = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5)
            x = _ACTIVATIONS[self.activation](x)
        weight, bias = last
        return x @ weight + bias[..., None, :]

    def member(self, index: Array | int) -> Self:
        """The members at `index` of the first ensemble axis."""
        return jax.tree.map(lambda leaf: leaf[index], self)


class Normaliser(eqx.Module):
    """z-scores with a mean and a deviation for each part."""

    mean: Array  # [n]
    deviation: Array  # [n]

    @classmethod
    def identity(cls, size: int) -> Self:
        """Leaves values as they are."""
        return cls(jnp.zeros(size), jnp.ones(size))

    @classmethod
    def of(cls, values: Array, valid: Array, least: Array | float = 0.0) -> Self:
        """From the rows of `values` [N, n] where `valid` [N], with deviations of at `least` so much.

        A part that does not vary keeps its scale: dividing by nothing would turn the first change into an explosion.
        """
        count = jnp.maximum(jnp.sum(valid), 1)
        first = values[0]  # measured from there, equal numbers have no rounding error for a deviation
        apart = jnp.where(valid[:, None], values - first, 0.0)
        mean = jnp.sum(apart, axis=0) / count
        square = jnp.sum(jnp.where(valid[:, None], (apart - mean) ** 2, 0.0), axis=0) / count
        deviation = jnp.maximum(jnp.sqrt(square), least)
        deviation = jnp.where(deviation == 1.0, jnp.nextafter(deviation, 2.0), deviation)  # one is for what is still
        return cls(first + mean, jnp.where(deviation > 1e-6, deviation, 1.0))

    @property
    def still(self) -> Array:
        """Which parts did not vary, [n]."""
        return self.deviation == 1.0

    def __call__(self, values: Array) -> Array:
        """To z-scores."""
        return (values - self.mean) / self.deviation

    def undo(self, scores: Array) -> Array:
        """From z-scores."""
        return scores * self.deviation + self.mean


def orthogonal(net: MLP, key: Array, last: float = 1.0) -> MLP:
    """The same shapes with orthogonal weights (Saxe et al. 2014), hidden ones of gain sqrt(2), and biases of zero."""
    gains = [2**0.5] * (len(net.weights) - 1) + [last]

    def drawn(number: int, weight: Array, gain: float) -> Array:
        keys = jax.random.split(jax.random.fold_in(key, number), weight[..., 0, 0].size)
        draw = jax.nn.initializers.orthogonal(gain)
        return jax.vmap(lambda each: draw(each, weight.shape[-2:]))(keys).reshape(weight.shape)

    weights = tuple(drawn(*each) for each in zip(range(len(gains)), net.weights, gains, strict=True))
    return eqx.tree_at(lambda n: (n.weights, n.biases), net, (weights, jax.tree.map(jnp.zeros_like, net.biases)))


def activated(tree: Any, activation: Activation) -> Any:
    """The same with another activation in all its networks, the moments of their optimisers among them."""

    def is_net(node: Any) -> bool:
        return isinstance(node, MLP)

    return jax.tree.map(lambda x: replace(x, activation=activation) if is_net(x) else x, tree, is_leaf=is_net)


def rescale_inputs(net: MLP, old: Normaliser, new: Normaliser) -> MLP:
    """The same function of the raw input after its normaliser changed; only the first normalised parts are rescaled.

    Data widen as an agent learns. Without this every refit of a normaliser would change policy, critics and models.

    Of a part that hardly varied so far a network knows nothing, and says something steep: a thing that was touched once
    and later pushed about widens hundreds of times, and kept as it was, its part would drown all others. So no part
    becomes louder than a few times the average; the function is then the same at the old mean only.
    """
    size = old.mean.shape[-1]
    first = net.weights[0]
    seen = first[..., :size, :]
    loudness = jnp.linalg.norm(first, axis=-1)
    room = _LOUDEST * jnp.mean(loudness, axis=-1, keepdims=True) / jnp.maximum(loudness[..., :size], 1e-12)
    ratio = jnp.minimum(new.deviation / old.deviation, jnp.maximum(room, 1.0))
    scaled = seen * ratio[..., None]
    bias = net.biases[0] + jnp.einsum("i,...io->...o", (new.mean - old.mean) / new.deviation, scaled)
    weight = jnp.concatenate([scaled, first[..., size:, :]], axis=-2)
    return eqx.tree_at(lambda n: (n.weights[0], n.biases[0]), net, (weight, bias))


def rescale_outputs(net: MLP, old: Normaliser, new: Normaliser) -> MLP:
    """The same raw output after the normaliser of the first outputs changed; none for parts that begin to vary.

    Of a part that had not varied so far a network knows that it does not change. The little that it says beside that is
    in raw units, and by the scale of first changes it would be thousands of deviations.
    """
    size = old.mean.shape[-1]
    ratio = jnp.where(old.still & ~new.still, 0.0, old.deviation / new.deviation)
    weight = net.weights[-1].at[..., :size].multiply(ratio)
    bias = net.biases[-1].at[..., :size].multiply(ratio).at[..., :size].add((old.mean - new.mean) / new.deviation)
    return eqx.tree_at(lambda n: (n.weights[-1], n.biases[-1]), net, (weight, bias))
