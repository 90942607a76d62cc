import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cdpo.solvers.critics import mixed, traced


@settings(derandomize=True, max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), trace=st.sampled_from([0.0, 0.7, 1.0]), ending=st.sampled_from([0.0, 0.4]))
def test_targets_mix_returns_of_all_lengths(seed, trace, ending):
    rng = np.random.default_rng(seed)
    reward, later = rng.normal(size=(2, 5, 1, 3))
    alive = (rng.random((5, 1, 3)) >= ending).astype(float)  # where one ends, another begins
    seen = np.asarray(jax.jit(traced, static_argnums=3)(*map(jnp.asarray, (reward, alive, later)), 0.9, trace))
    for t, p in np.ndindex(5, 3):
        returns, total, weight = [], 0.0, 1.0
        for k in range(t, 5):
            total += weight * reward[k, 0, p]
            weight *= 0.9 * alive[k, 0, p]
            returns.append(total + weight * later[k, 0, p])
        shares = [(1 - trace) * trace**k for k in range(len(returns) - 1)] + [trace ** (len(returns) - 1)]
        np.testing.assert_allclose(seen[t, 0, p], np.dot(shares, returns), rtol=1e-4, atol=1e-5)


@settings(derandomize=True, max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), lengths=st.integers(2, 5), models=st.integers(1, 3))
def test_futures_are_mixed_by_the_inverse_variance_over_models_and_twins(seed, lengths, models):
    rng = np.random.default_rng(seed)
    twins = rng.normal(size=(lengths, 1 + models, 2, 3)) * rng.uniform(0.1, 3, size=(lengths, 1, 1, 1))
    target, length = jax.jit(mixed)(jnp.asarray(twins, jnp.float32))
    for row in range(3):
        certain = np.array([1 / (np.var(twins[each, 1:, :, row]) + 1e-6) for each in range(lengths)])
        share = certain / certain.sum()
        own = twins[:, 0, :, row].min(axis=-1)
        np.testing.assert_allclose(target[row], share @ own, rtol=1e-3, atol=1e-4)
        assert own.min() - 1e-4 <= target[row] <= own.max() + 1e-4
    assert 0 <= length <= lengths - 1


def test_futures_of_which_all_are_certain_have_equal_shares():
    twins = jnp.broadcast_to(jnp.array([1.0, 2.0, 6.0])[:, None, None, None], (3, 4, 2, 5))
    target, length = mixed(twins)
    np.testing.assert_allclose(target, 3.0, rtol=1e-6)
    np.testing.assert_allclose(length, 1.0, rtol=1e-6)


def test_a_length_that_models_or_twins_disagree_about_has_no_share():
    twins = jnp.zeros((2, 3, 2, 2)).at[0].set(1.0)
    by_model, by_twin = twins.at[1, 2, :, 0].set(50.0), twins.at[1, :, 1, 1].set(50.0)
    np.testing.assert_allclose(mixed(by_model)[0], [1.0, 0.5], atol=1e-3)
    np.testing.assert_allclose(mixed(by_twin)[0], [0.5, 1.0], atol=1e-3)


def test_a_single_future_is_the_worse_twins():
    target, _ = mixed(jnp.array([[[[3.0, 1.0], [2.0, 5.0]]]]))
    np.testing.assert_array_equal(target, [2.0, 1.0])
