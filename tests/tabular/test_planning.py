import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from cdpo.tabular import planning
from cdpo.tabular.mdp import FiniteMDP
from cdpo.tabular.planning import Known, Model, uniform_policy

S, A = 4, 3
QUICK = settings(derandomize=True, max_examples=12, deadline=None)
SEED = st.integers(0, 10**6)

policy_iteration = jax.jit(planning.policy_iteration)
evaluate = jax.jit(planning.evaluate)
visitation = jax.jit(planning.visitation)
optimal_average_reward = jax.jit(planning.optimal_average_reward)


@QUICK
@given(seed=SEED, ending=st.booleans(), masked=st.booleans())
def test_policy_iteration_equals_brute_force(seed, ending, masked, random_mdp, exact):
    mdp = random_mdp(np.random.default_rng(seed), S, A, ending=ending, masked=masked)
    known, truth, allowed = Known.of(mdp), exact.of(mdp), np.asarray(mdp.allowed)
    policies = [np.eye(A)[list(p)] for p in itertools.product(*(np.flatnonzero(row) for row in allowed))]
    best = np.max([truth.value(policy) for policy in policies], axis=0)
    policy, q = policy_iteration(Model.true(mdp), known, uniform_policy(mdp.allowed))
    assert (np.asarray(policy)[~allowed] == 0).all()
    np.testing.assert_allclose(truth.value(policy), best, atol=1e-4)
    np.testing.assert_allclose(q, truth.reward + truth.discount * truth.transition @ best, atol=1e-4)


def test_among_equals_the_initial_policy_decides():
    mdp = FiniteMDP(np.ones((1, 3, 1)), np.array([[1.0, 1.0, 0.0]]))
    for first in range(2):
        policy, _ = policy_iteration(Model.true(mdp), Known.of(mdp), jnp.eye(3)[first][None])
        np.testing.assert_array_equal(policy, np.eye(3)[first][None])


@QUICK
@given(seed=SEED, ending=st.booleans(), discount=st.sampled_from([0.0, 0.5, 0.9, 0.99]))
def test_evaluate_equals_a_float64_solution(seed, ending, discount, random_mdp, random_policy, exact):
    rng = np.random.default_rng(seed)
    mdp = random_mdp(rng, S, A, ending=ending, discount=discount)
    policy = random_policy(rng, np.asarray(mdp.allowed)).astype(np.float32)
    found = evaluate(Model.true(mdp), jnp.asarray(policy), mdp.discount)
    np.testing.assert_allclose(found, exact.of(mdp).value(policy), rtol=1e-4, atol=2e-4)


def test_large_systems_are_solved_as_well(random_mdp, random_policy, exact):
    rng = np.random.default_rng(0)
    for states in (32, 33):  # the last solved by elimination, the first by the library
        mdp = random_mdp(rng, states, 2)
        policy = random_policy(rng, np.asarray(mdp.allowed)).astype(np.float32)
        found = evaluate(Model.true(mdp), jnp.asarray(policy), mdp.discount)
        np.testing.assert_allclose(found, exact.of(mdp).value(policy), rtol=1e-4, atol=2e-4)
        found = visitation(Model.true(mdp), jnp.asarray(policy), mdp.start, mdp.discount)
        np.testing.assert_allclose(found, exact.of(mdp).visitation(policy), atol=1e-5)


@QUICK
@given(seed=SEED, ending=st.booleans())
def test_visitation_equals_the_series(seed, ending, random_mdp, random_policy, exact):
    rng = np.random.default_rng(seed)
    mdp = random_mdp(rng, S, A, ending=ending)
    policy = random_policy(rng, np.asarray(mdp.allowed)).astype(np.float32)
    model = Model.true(mdp)
    found = visitation(model, jnp.asarray(policy), mdp.start, mdp.discount)
    np.testing.assert_allclose(found, exact.of(mdp).visitation(policy), atol=1e-5)
    if ending:
        # What is missing is what has ended: gamma times the flow into terminal states, for ever after.
        flow = np.einsum("s,sa,sa->", found, policy, 1 - np.asarray(model.transition).sum(-1))
        assert float(found.sum()) == pytest.approx(1 - 0.9 * flow / (1 - 0.9), abs=1e-4)
        assert found.sum() < 1
    else:
        assert float(found.sum()) == pytest.approx(1, abs=1e-5)


def average_by_program(mdp):
    """The largest average reward over stationary state-action frequencies of the restarted process."""
    transition = np.asarray(mdp.transition, np.float64)
    terminal, start = np.asarray(mdp.terminal), np.asarray(mdp.start, np.float64)
    reward = np.sum(transition * np.asarray(mdp.reward_mean, np.float64), axis=-1)
    into_end = transition[..., terminal].sum(-1)
    moved = np.where(terminal, 0, transition) + into_end[..., None] * start
    states, actions = reward.shape
    balance = np.repeat(np.eye(states), actions, axis=1) - moved.reshape(-1, states).T
    usable = (np.asarray(mdp.allowed) & ~terminal[:, None]).ravel()
    answer = linprog(
        -reward.ravel(),
        A_eq=np.vstack([balance, np.ones(states * actions)]),
        b_eq=np.append(np.zeros(states), 1),
        bounds=[(0, 1 if use else 0) for use in usable],
    )
    assert answer.status == 0
    return -answer.fun


@QUICK
@given(seed=SEED, ending=st.booleans(), masked=st.booleans())
def test_optimal_average_reward_equals_a_linear_program(seed, ending, masked, random_mdp):
    rng = np.random.default_rng(seed)
    mdp = random_mdp(rng, S, A, ending=ending, masked=masked)
    # Every state can be reached from every other, as the average of a communicating MDP demands.
    mixed = 0.95 * np.asarray(mdp.transition, np.float64) + 0.05 / S
    mixed /= mixed.sum(-1, keepdims=True)
    mdp = FiniteMDP(mixed, mdp.reward_mean, start=mdp.start, terminal=mdp.terminal, allowed=mdp.allowed)
    assert float(optimal_average_reward(mdp)) == pytest.approx(average_by_program(mdp), abs=2e-5)


def test_optimal_average_reward_of_a_periodic_chain():
    """A ring of two states never mixes, and value iteration on it alone would never settle."""
    ring = np.array([[[0.0, 1.0]], [[1.0, 0.0]]])
    mdp = FiniteMDP(ring, np.array([[0.0], [1.0]]))
    assert float(optimal_average_reward(mdp)) == pytest.approx(0.5, abs=1e-5)


def test_a_batch_equals_one_by_one(random_mdp, random_policy):
    rng = np.random.default_rng(0)
    mdps = [random_mdp(rng, S, A, ending=True, masked=True) for _ in range(5)]
    policies = [jnp.float32(random_policy(rng, np.asarray(mdp.allowed))) for mdp in mdps]

    def everything(mdp, policy):
        model, known = Model.true(mdp), Known.of(mdp)
        return (
            planning.policy_iteration(model, known, policy),
            planning.evaluate(model, policy, known.discount),
            planning.visitation(model, policy, known.start, known.discount),
            planning.optimal_average_reward(mdp),
        )

    stacked = jax.tree.map(lambda *x: jnp.stack(x), *mdps)
    batch = jax.jit(jax.vmap(everything))(stacked, jnp.stack(policies))
    single = jax.jit(everything)
    for i, (mdp, policy) in enumerate(zip(mdps, policies, strict=True)):
        alone = single(mdp, policy)
        np.testing.assert_array_equal(batch[0][0][i], alone[0][0])
        for x, y in zip(jax.tree.leaves(batch), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(x[i], y, rtol=1e-4, atol=1e-4)
