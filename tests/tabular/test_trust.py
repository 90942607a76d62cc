import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linprog

from cdpo.tabular.planning import Known
from cdpo.tabular.trust import Trust, constrained_argmax

S, A = 5, 3
argmax = jax.jit(constrained_argmax)


def known_of(allowed):
    start = jnp.eye(S)[0]
    return Known(start, jnp.zeros(S, bool), jnp.asarray(allowed), jnp.float32(0.9))


def case(seed, random_policy):
    """Values, a stochastic policy, an occupancy with a state never visited, weights, some actions missing."""
    rng = np.random.default_rng(seed)
    allowed = rng.random((S, A)) < 0.8
    allowed[:, 0] = True
    occupancy = rng.dirichlet(np.full(S, 0.5))
    occupancy[rng.integers(S)] = 0
    occupancy /= occupancy.sum()
    return rng.normal(size=(S, A)), random_policy(rng, allowed), allowed, occupancy, rng.uniform(0, 1, size=S)


def program(q, policy, allowed, cost, weight, budget):
    """max sum w Q pi over pi and t >= |pi - policy|, with cost . sum t / 2 <= budget: by a linear program."""
    n = S * A
    objective = np.concatenate([-(weight[:, None] * q).ravel(), np.zeros(n)])
    identity = np.eye(n)
    above = np.block([[identity, -identity], [-identity, -identity]])
    limits = np.concatenate([policy.ravel(), -policy.ravel()])
    bound = np.concatenate([np.zeros((len(cost), n)), np.repeat(cost, A, axis=1) / 2], axis=1)
    rows = np.concatenate([np.kron(np.eye(S), np.ones(A)), np.zeros((S, n))], axis=1)
    most = np.concatenate([allowed.ravel().astype(float), np.full(n, 2.0)])
    answer = linprog(
        objective,
        A_ub=np.concatenate([above, bound]),
        b_ub=np.concatenate([limits, np.full(len(cost), budget)]),
        A_eq=rows,
        b_eq=np.ones(S),
        bounds=[(0, m) for m in most],
    )
    assert answer.status == 0
    return -answer.fun


def variation(policy, other):
    return 0.5 * np.abs(np.asarray(policy, np.float64) - np.asarray(other)).sum(-1)


@pytest.mark.parametrize("budget", [0.0, 0.05, 0.2, 0.7, 1.0])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("form", ["occupancy", "weighted", "pointwise"])
def test_constrained_argmax_solves_the_linear_program(seed, budget, form, random_policy):
    q, policy, allowed, occupancy, weight = case(seed, random_policy)
    if form != "weighted":
        weight = np.ones(S)
    cost = np.eye(S) if form == "pointwise" else occupancy[None]
    trust = Trust(
        jnp.float32(budget),
        cost=None if form == "pointwise" else jnp.float32(occupancy),
        weight=jnp.float32(weight) if form == "weighted" else None,
    )
    found = np.asarray(argmax(jnp.float32(q), jnp.float32(policy), known_of(allowed), trust), np.float64)

    assert (found >= -1e-6).all() and (found[~allowed] == 0).all()
    assert found.sum(-1) == pytest.approx(np.ones(S), abs=1e-5)
    assert (cost @ variation(found, policy) <= budget + 1e-5).all()
    best = program(q, policy, allowed, cost, weight, budget)
    assert np.sum(weight[:, None] * q * found) == pytest.approx(best, abs=1e-4)


def test_a_bound_of_zero_leaves_the_policy_where_it_goes(random_policy):
    q, policy, allowed, _, _ = case(3, random_policy)
    occupancy = jnp.full(S, 1 / S)
    for trust in (Trust(0.0, occupancy), Trust(0.0, None)):
        found = argmax(jnp.float32(q), jnp.float32(policy), known_of(allowed), trust)
        np.testing.assert_array_equal(found, np.float32(policy))


def test_a_state_that_is_never_visited_is_changed_for_free(random_policy):
    q, policy, allowed, _, _ = case(3, random_policy)
    occupancy = np.array([0.5, 0.5, 0, 0, 0], np.float32)
    found = argmax(jnp.float32(q), jnp.float32(policy), known_of(allowed), Trust(0.0, jnp.asarray(occupancy)))
    np.testing.assert_array_equal(found[:2], np.float32(policy[:2]))
    best = np.argmax(np.where(allowed, q, -np.inf), axis=-1)
    np.testing.assert_allclose(found[2:], np.eye(A)[best[2:]], atol=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_a_bound_of_one_is_no_bound(seed, random_policy):
    q, policy, allowed, occupancy, _ = case(seed, random_policy)
    q, policy, known = jnp.float32(q), jnp.float32(policy), known_of(allowed)
    free = argmax(q, policy, known, None)
    for trust in (Trust(1.0, jnp.float32(occupancy)), Trust(1.0, None)):
        np.testing.assert_allclose(argmax(q, policy, known, trust), free, atol=1e-5)


def test_without_trust_the_result_is_deterministic_and_keeps_ties():
    q = jnp.array([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0], [0.0, 1.0, 1.0 + 1e-8], [0.5, 0.2, 0.5], [3.0, 2.0, 1.0]])
    likely = jnp.array([[0.1, 0.5, 0.4], [0.1, 0.2, 0.7], [0.3, 0.6, 0.1], [0.2, 0.7, 0.1], [0.2, 0.7, 0.1]])
    found = argmax(q, likely, known_of(np.ones((S, A), bool)), None)
    np.testing.assert_array_equal(found, np.eye(A)[[1, 2, 1, 0, 0]])


def test_gains_below_the_noise_move_nothing_inside_the_trust_region():
    q = jnp.zeros((S, A)).at[:, 1].set(1e-8)
    policy = jnp.full((S, A), 1 / A)
    found = argmax(q, policy, known_of(np.ones((S, A), bool)), Trust(1.0, jnp.full(S, 1 / S)))
    np.testing.assert_array_equal(found, policy)
