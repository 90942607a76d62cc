from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdpo.dynamics.networks import MLP, Normaliser, activated, orthogonal, rescale_inputs, rescale_outputs

few = settings(derandomize=True, max_examples=15, deadline=None)
seeds = st.integers(0, 10**6)
evaluate = jax.jit(lambda net, x: net(x))


def random_net(rng, sizes, ensemble=(), **kind):
    """With biases, which a net that was just created has not."""
    kind = {"activation": "swish", "layer_norm": False} | kind
    pairs = list(pairwise(sizes))
    draw = lambda *shape: jnp.asarray(rng.normal(size=(*ensemble, *shape)), jnp.float32)  # noqa: E731
    return MLP(tuple(draw(*pair) for pair in pairs), tuple(draw(size) for _, size in pairs), **kind)


def by_hand(net, member, x):
    """One member in float64."""
    x = np.asarray(x, np.float64)
    for layer, (weight, bias) in enumerate(zip(net.weights, net.biases, strict=True)):
        x = x @ np.asarray(weight, np.float64)[member] + np.asarray(bias, np.float64)[member]
        if layer < len(net.weights) - 1:
            if net.layer_norm:
                x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
            x = np.maximum(x, 0) if net.activation == "relu" else x / (1 + np.exp(-x))
    return x


def random_normaliser(rng, size):
    return Normaliser(
        jnp.asarray(rng.normal(scale=3, size=size), jnp.float32),
        jnp.asarray(np.exp(rng.uniform(-0.5, 0.5, size)), jnp.float32),
    )


@pytest.mark.parametrize("kind", [{}, {"layer_norm": True}, {"activation": "relu"}])
def test_leading_axes_are_members_evaluated_one_by_one(kind):
    rng = np.random.default_rng(0)
    net = random_net(rng, (3, 5, 4, 2), (2, 3), **kind)
    x = rng.normal(size=(2, 3, 6, 3)).astype(np.float32)
    own = evaluate(net, x)  # a batch for each member
    shared = evaluate(net, x[0, 0])  # the same batch for all
    assert own.shape == shared.shape == (2, 3, 6, 2)
    for member in np.ndindex(2, 3):
        np.testing.assert_allclose(own[member], by_hand(net, member, x[member]), rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(shared[member], by_hand(net, member, x[0, 0]), rtol=1e-3, atol=1e-4)


def test_member_takes_members_of_the_first_axis():
    net = random_net(np.random.default_rng(0), (2, 3, 1), (4,))
    x = np.ones((5, 2), np.float32)
    chosen = evaluate(net.member(jnp.array([[3, 1]])), x)
    assert chosen.shape == (1, 2, 5, 1)
    np.testing.assert_allclose(chosen[0], evaluate(net, x)[np.array([3, 1])], rtol=1e-6)


def test_created_weights_have_variance_one_over_fan_in_and_members_differ():
    net = MLP.create(jax.random.key(0), (100, 50, 1), (4,))
    assert np.std(net.weights[0]) == pytest.approx(0.1, rel=0.03)
    assert all(not np.any(bias) for bias in net.biases)
    assert not np.any(net.weights[0][0] == net.weights[0][1])


def test_another_activation_reaches_every_network_of_a_tree_and_changes_nothing_else():
    net = MLP.create(jax.random.key(0), (3, 8, 2))
    tree = activated((net, {"moments": net}, jnp.ones(2)), "tanh")
    x = jnp.linspace(-1, 1, 12).reshape(4, 3)
    by_hand = jnp.tanh(x @ net.weights[0] + net.biases[0]) @ net.weights[1] + net.biases[1]
    np.testing.assert_allclose(tree[0](x), by_hand, atol=1e-6)
    assert jax.tree.structure(tree[1]["moments"]) == jax.tree.structure(tree[0]) != jax.tree.structure(net)
    np.testing.assert_array_equal(tree[2], 1)


@pytest.mark.parametrize("ensemble", [(), (2, 3)])
def test_orthogonal_weights_are_so_by_member_with_the_gain_of_their_layer(ensemble):
    net = random_net(np.random.default_rng(0), (3, 8, 5, 2), ensemble)
    made = orthogonal(net, jax.random.key(0), last=0.01)
    for weight, bias, old, gain in zip(made.weights, made.biases, net.weights, (2, 2, 1e-4), strict=True):
        assert weight.shape == old.shape and not np.any(bias)
        short = weight if weight.shape[-2] <= weight.shape[-1] else jnp.swapaxes(weight, -1, -2)
        square = np.asarray(short @ jnp.swapaxes(short, -1, -2))
        np.testing.assert_allclose(square, np.broadcast_to(gain * np.eye(square.shape[-1]), square.shape), atol=1e-5)
    if ensemble:
        assert np.any(np.asarray(made.weights[0][0, 0] != made.weights[0][1, 0]))


@few
@given(seed=seeds)
def test_rescaled_inputs_leave_the_function_of_raw_inputs_as_it_was(seed):
    rng = np.random.default_rng(seed)
    net = random_net(rng, (5, 4, 2), (2,))
    old, new = random_normaliser(rng, 3), random_normaliser(rng, 3)
    raw, rest = rng.normal(size=(6, 3)), rng.normal(size=(6, 2))  # the last two inputs are not normalised
    see = lambda scaling: np.concatenate([np.asarray(scaling(raw)), rest], axis=-1).astype(np.float32)  # noqa: E731
    before, after = evaluate(net, see(old)), evaluate(rescale_inputs(net, old, new), see(new))
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-4 * np.max(np.abs(before)))


@few
@given(seed=seeds, widening=st.floats(20, 1e5))
def test_a_part_that_widens_much_does_not_drown_the_others_and_changes_nothing_where_it_was(seed, widening):
    rng = np.random.default_rng(seed)
    net = random_net(rng, (3, 4, 2), (2,))
    old = random_normaliser(rng, 3)
    moved = old.mean.at[0].add(widening * old.deviation[0])
    new = Normaliser(moved, old.deviation.at[0].multiply(widening))
    rescaled = rescale_inputs(net, old, new)
    rows, others = np.linalg.norm(rescaled.weights[0], axis=-1), np.linalg.norm(net.weights[0], axis=-1)
    np.testing.assert_allclose(rows[:, 0], 5 * np.mean(others, axis=-1), rtol=1e-4)
    np.testing.assert_array_equal(rescaled.weights[0][:, 1:], net.weights[0][:, 1:])
    raw = rng.normal(size=(6, 3)).astype(np.float32)
    raw[:, 0] = old.mean[0]
    before, after = evaluate(net, old(raw)), evaluate(rescaled, new(raw))
    np.testing.assert_allclose(after, before, rtol=1e-2, atol=1e-2 * np.max(np.abs(before)))


@few
@given(seed=seeds)
def test_rescaled_outputs_leave_raw_outputs_as_they_were(seed):
    rng = np.random.default_rng(seed)
    net = random_net(rng, (3, 4, 5), (2,))
    old, new = random_normaliser(rng, 3), random_normaliser(rng, 3)
    x = rng.normal(size=(6, 3)).astype(np.float32)
    before, after = evaluate(net, x), evaluate(rescale_outputs(net, old, new), x)
    raw = np.asarray(old.undo(before[..., :3]))
    np.testing.assert_allclose(new.undo(after[..., :3]), raw, rtol=1e-4, atol=1e-4 * np.max(np.abs(raw)))
    np.testing.assert_array_equal(after[..., 3:], before[..., 3:])


def test_outputs_of_a_part_that_begins_to_vary_are_what_it_was_until_then():
    rng = np.random.default_rng(0)
    net = random_net(rng, (3, 4, 2), (2,))
    old = Normaliser(jnp.array([0.5, 0.0]), jnp.array([1.0, 2.0]))  # the first part did not vary
    new = Normaliser(jnp.array([0.5, 0.0]), jnp.array([1e-5, 2.0]))
    x = rng.normal(size=(6, 3)).astype(np.float32)
    before, after = evaluate(net, x), evaluate(rescale_outputs(net, old, new), x)
    np.testing.assert_array_equal(new.undo(after)[..., 0], 0.5)
    np.testing.assert_array_equal(after[..., 1], before[..., 1])


def test_a_normaliser_sees_valid_rows_only_and_can_be_undone():
    rng = np.random.default_rng(0)
    values = rng.normal(5, 3, size=(40, 2)).astype(np.float32)
    valid = np.arange(40) < 25
    of = Normaliser.of(jnp.asarray(np.where(valid[:, None], values, 1e6)), jnp.asarray(valid))
    np.testing.assert_allclose(of.mean, values[:25].mean(0), rtol=1e-5)
    np.testing.assert_allclose(of.deviation, values[:25].std(0), rtol=1e-5)
    np.testing.assert_allclose(of.undo(of(values)), values, rtol=1e-5, atol=1e-5)


def test_a_normaliser_divides_by_no_less_than_it_is_told():
    values = jnp.stack([jnp.linspace(-1e-4, 1e-4, 20), jnp.linspace(-3, 3, 20), jnp.zeros(20)], axis=-1)
    of = Normaliser.of(values, jnp.ones(20, bool), jnp.array([0.01, 0.01, 0.0]))
    np.testing.assert_allclose(of.deviation, [0.01, np.std(values[:, 1]), 1.0], rtol=1e-5)
    np.testing.assert_array_equal(of.still, [False, False, True])
    signs = Normaliser.of(jnp.array([[-1.0], [1.0]]), jnp.ones(2, bool))  # of deviation one, and not still
    np.testing.assert_allclose(signs.deviation, 1.0, rtol=1e-6)
    assert not signs.still.any()


@pytest.mark.parametrize("valid", [0, 1, 30])
def test_a_column_that_does_not_vary_keeps_its_scale(valid):
    values = jnp.stack([jnp.full(40, 0.5), jnp.arange(40.0)], axis=-1)
    of = Normaliser.of(values, jnp.arange(40) < valid)
    np.testing.assert_array_equal(of.deviation[0], 1.0)
    assert np.all(np.isfinite(of(values)))


def test_a_large_column_that_does_not_vary_keeps_its_scale():
    values = np.random.default_rng(0).uniform(10, 2000, size=(1, 50)).astype(np.float32)
    of = Normaliser.of(jnp.asarray(np.repeat(values, 1000, axis=0)), jnp.ones(1000, bool))
    np.testing.assert_array_equal(of.deviation, 1.0)
