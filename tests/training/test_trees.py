"""Trees through a checkpoint: every leaf comes back as it was, or is named."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from cdpo.training import store
from cdpo.training.schema import names
from cdpo.training.store import load_arrays, save_arrays


def flatten(tree):
    return store.flatten(tree, names)


def restore(like, arrays):
    return store.restore(like, arrays, names)


class State(NamedTuple):
    layers: Any
    key: Any
    steps: Any
    host: Any
    nothing: Any = None


def state(seed=0, impl=None):
    key = jax.random.key(seed, impl=impl)
    values = np.random.default_rng(seed)
    return State(
        layers=[{"w": jnp.asarray(values.normal(size=(2, 3)), jnp.float32), "act": jax.nn.relu}, {"rate": 0.5}],
        key=key,
        steps=jnp.asarray(seed, jnp.int32),
        host=values.normal(size=4),
    )


def assert_same_tree(one, two):
    assert jax.tree_util.tree_structure(one) == jax.tree_util.tree_structure(two)
    for a, b in zip(jax.tree_util.tree_leaves(one), jax.tree_util.tree_leaves(two), strict=True):
        assert type(a) is type(b)
        if not isinstance(a, jax.Array | np.ndarray):
            assert a == b
            continue
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_array_equal(a, b, strict=True)


def test_leaves_are_named_by_their_paths():
    assert list(flatten(state())) == ["layers.0.w", "key#threefry2x32", "steps", "host"]
    assert flatten({}) == flatten(None) == {}


def test_a_tree_comes_back_through_a_file(path):
    save_arrays(path, flatten(state(7)), {})
    assert_same_tree(restore(state(0), load_arrays(path)[0]), state(7))


@pytest.mark.parametrize(
    "tree",
    [
        jnp.ones(3),
        np.ones(3),
        np.float32(3),
        jnp.zeros((0, 2)),
        jnp.asarray(True),
        jax.random.key(3, impl="rbg"),
        jax.random.split(jax.random.key(3), (2, 3)),
        jax.random.PRNGKey(3),
        (),
        {"none": None, "text": "static"},
    ],
    ids=["jax", "numpy", "scalar", "empty", "bool", "rbg", "keys", "raw key", "nothing", "static"],
)
def test_every_kind_of_leaf_comes_back(path, tree):
    save_arrays(path, flatten(tree), {})
    assert_same_tree(restore(tree, load_arrays(path)[0]), tree)


def test_modules_and_optimisers_come_back(path):
    def make(seed):
        layer = eqx.nn.Linear(3, 2, key=jax.random.key(seed))
        return layer, optax.adam(0.1).init(eqx.filter(layer, eqx.is_array))

    save_arrays(path, flatten(make(1)), {})
    restored = restore(make(0), load_arrays(path)[0])
    assert eqx.tree_equal(restored, make(1))
    assert not eqx.tree_equal(restored, make(0))


def test_a_restored_key_draws_the_same_numbers():
    restored = restore(state(0), flatten(state(5)))
    assert jax.random.normal(restored.key) == jax.random.normal(jax.random.key(5))


def test_weak_types_come_back_weak():
    """A compiled function would else be compiled again, and a promotion might end elsewhere."""
    for leaf in (jnp.asarray(0.5), jnp.asarray(3), jnp.broadcast_to(jnp.asarray(0.5), (2, 3))):
        assert leaf.weak_type
        restored = restore(leaf * 0, flatten(leaf))
        assert restored.aval == leaf.aval
        assert (restored == leaf).all()
    assert not restore(jnp.ones(2), {"": np.zeros(2, np.float32)}).weak_type


def test_restored_arrays_are_copies():
    arrays = flatten({"host": np.zeros(1000), "device": jnp.zeros(1000)})
    arrays = {name: array.copy() for name, array in arrays.items()}
    restored = restore({"host": np.ones(1000), "device": jnp.ones(1000)}, arrays)
    for array in arrays.values():
        array[...] = 5
    assert not restored["host"].any()
    assert not restored["device"].any()
    restored["host"][0] = 1


def test_a_missing_leaf_is_named(complaint):
    arrays = flatten(state())
    del arrays["layers.0.w"]
    assert "leaf 'layers.0.w' is missing" in complaint(restore, state(), arrays)


def test_a_surplus_leaf_is_named(complaint):
    assert "'more'" in complaint(restore, state(), flatten(state()) | {"more": np.zeros(1)})


@pytest.mark.parametrize(
    "value", [np.zeros(5), np.zeros((1, 4)), np.zeros(()), np.zeros((4, 0))], ids=lambda value: str(value.shape)
)
def test_a_leaf_of_another_shape_is_named(value, complaint):
    message = complaint(restore, state(), flatten(state()) | {"host": value})
    assert "'host' has shape" in message
    assert f"{value.shape} instead of (4,)" in message


@pytest.mark.parametrize(("name", "dtype"), [("host", "f4"), ("steps", "i8"), ("steps", "u4"), ("host", ">f8")])
def test_a_leaf_of_another_dtype_is_named_and_never_cast(name, dtype, complaint):
    arrays = flatten(state())
    arrays[name] = arrays[name].astype(dtype)
    assert f"leaf '{name}' has dtype" in complaint(restore, state(), arrays)


def test_a_key_of_another_generator_is_named(complaint):
    message = complaint(restore, state(impl="rbg"), flatten(state()))
    assert "'key#rbg'" in message
    assert "'key#threefry2x32'" in message


def test_raw_and_typed_keys_are_not_confused(complaint):
    raw, typed = {"key": jax.random.PRNGKey(0)}, {"key": jax.random.key(0)}
    assert "'key#threefry2x32" in complaint(restore, typed, flatten(raw))
    assert "'key#threefry2x32" in complaint(restore, raw, flatten(typed))


def test_a_bfloat16_leaf_is_named_when_saving(path):
    with pytest.raises(TypeError, match="'w' has dtype bfloat16"):
        save_arrays(path, flatten({"w": jnp.zeros(2, jnp.bfloat16)}), {})
