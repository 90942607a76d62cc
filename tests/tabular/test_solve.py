import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cdpo.tabular.planning import Known, Model, policy_iteration
from cdpo.tabular.solve import Aggregation, solve

S, A = 5, 3


@pytest.mark.parametrize("level", [0.0, 0.25, 0.9, 1.0])
def test_aggregation_by_quantile(level):
    values = np.random.default_rng(0).normal(size=(7, S, A)).astype(np.float32)
    found = Aggregation("quantile", level)(jnp.asarray(values))
    np.testing.assert_allclose(found, np.quantile(values, level, axis=0), atol=1e-5)


def test_aggregation_by_mean():
    values = np.random.default_rng(0).normal(size=(7, S, A)).astype(np.float32)
    np.testing.assert_allclose(Aggregation()(jnp.asarray(values)), values.mean(0), atol=1e-6)


@pytest.fixture(scope="module")
def models(random_mdp):
    """A known part and a set of eight models that agree on it."""
    rng = np.random.default_rng(5)
    mdps = [random_mdp(rng, S, A) for _ in range(8)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *(Model.true(mdp) for mdp in mdps))
    return Known.of(mdps[0]), stacked


def test_solving_on_one_model_is_policy_iteration(models):
    known, stacked = models
    one = jax.tree.map(lambda x: x[0], stacked)
    uniform = jnp.full((S, A), 1 / A)
    both = jax.jit(lambda model: (solve(uniform, model, known), policy_iteration(model, known, uniform)[0]))
    np.testing.assert_array_equal(*both(one))


def test_value_optimal_aggregates_each_models_own_q(models):
    known, stacked = models
    uniform = jnp.full((S, A), 1 / A)
    q = jax.jit(jax.vmap(lambda m: policy_iteration(m, known, uniform)[1]))(stacked)
    for aggregation, expected in ((Aggregation(), np.mean(q, 0)), (Aggregation("quantile"), np.quantile(q, 0.9, 0))):
        found = jax.jit(lambda p, a=aggregation: solve(p, stacked, known, aggregation=a))(uniform)
        np.testing.assert_array_equal(found, np.eye(A)[np.argmax(expected, axis=-1)])
