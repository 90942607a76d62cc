"""Plans: what they are worth, and what they move."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdpo.dynamics.models import sampled_models
from cdpo.solvers import plans
from cdpo.solvers.mpc import MPCSettings
from cdpo.solvers.plans import Planning
from cdpo.solvers.policy import REACH

KEY = jax.random.key(0)
MOVES = ("actions", "parameters")


def steered(observation, action, following):
    """Best at zero, and with no more effort than needed."""
    return -(following[..., 0] ** 2) - 0.1 * action[..., 0] ** 2


def beyond_two(observation, action, following):
    return jnp.abs(following[..., 0]) > 2


@pytest.fixture(scope="module")
def planning(linear_task, linear_belief, some_policy):
    """Of a policy with opinions on two models that disagree."""
    task = linear_task(steered, beyond_two)
    policy = some_policy(task)

    def of(moves, beyond=lambda states: None, noise=None, **settings):
        belief = linear_belief(task, [[[0.0], [0.5]], [[0.1], [0.4]], [[-0.1], [0.6]]], noise)
        told = MPCSettings(moves=moves, **{"horizon": 4, **settings})
        return Planning(told, policy, sampled_models(belief, 2, "subset", KEY), 0.9, beyond, 0.7)

    return of


STATES = jnp.array([[-0.8], [0.3], [1.0]])


def course_of(plan, states, plans, key=KEY):
    return jax.jit(plan.course)(states, plans, key)


@pytest.mark.parametrize("moves", MOVES)
def test_the_plan_to_do_nothing_else_is_the_policy_on_every_model(planning, moves):
    plan = planning(moves)
    course = course_of(plan, STATES, plan.none(3)[None])
    state, alive = jnp.broadcast_to(STATES, (2, 3, 1)), np.ones((2, 3))
    for step in range(4):
        np.testing.assert_allclose(course.states[step, 0], state, atol=1e-5)
        mean = plan.policy(state).mean
        np.testing.assert_allclose(course.mean[step, 0], np.clip(mean, -0.9 * REACH, 0.9 * REACH), atol=1e-5)
        following, reward, ended = plan.models.step(state, jnp.tanh(course.mean[step, 0]), KEY)
        np.testing.assert_allclose(course.reward[step, 0], alive * reward, atol=1e-5)
        alive = alive * (1 - np.asarray(ended))
        np.testing.assert_array_equal(course.alive[step + 1, 0], alive)
        state = jnp.where(alive[..., None] > 0, following, state)


@pytest.mark.parametrize("moves", MOVES)
def test_each_candidate_leads_from_each_state_by_its_own_moves(planning, moves):
    plan = planning(moves)
    plans = 0.3 * jax.random.normal(KEY, (2, *plan.none(3).shape))
    together, course = course_of(plan, STATES, plans), jax.jit(plan.course)
    for number in range(2):
        for problem in range(3):
            alone = course(STATES[problem : problem + 1], plans[number : number + 1, problem : problem + 1], KEY)
            for ours, theirs in zip(together, alone, strict=True):
                np.testing.assert_allclose(ours[:, number, :, problem], theirs[:, 0, :, 0], rtol=1e-3, atol=1e-4)
    assert np.any(np.abs(together.mean[:, 0] - together.mean[:, 1]) > 1e-3)


def test_worth_is_the_mean_over_models_of_returns_of_all_lengths(planning):
    later = lambda states: 7 + states[..., 0]  # noqa: E731
    plan = planning("actions", beyond=later)
    course = course_of(plan, STATES, plan.none(3)[None])
    weight = 0.9 ** np.arange(5)
    rewards = np.cumsum(weight[:4, None, None] * course.reward[:, 0], axis=0)
    returns = rewards + weight[1:, None, None] * course.alive[1:, 0] * later(course.states[1:, 0])
    shares = np.array([0.3, 0.3 * 0.7, 0.3 * 0.7**2, 0.7**3])
    total = np.sum(shares[:, None, None] * returns, axis=0)
    np.testing.assert_allclose(plan.worth(course)[0], np.mean(total, axis=0) / weight[:4].sum(), rtol=1e-4)
    alone = planning("actions").worth(course)[0]
    np.testing.assert_allclose(alone, np.mean(rewards[-1], axis=0) / weight[:4].sum(), rtol=1e-4)


def test_nothing_that_follows_an_end_counts(planning):
    plan = planning("actions", beyond=lambda states: jnp.full(states.shape[:-1], 1e6))
    course = course_of(plan, jnp.array([[1.99]]), jnp.full((1, 1, 4, 1), 5.0))  # pushed out at once
    np.testing.assert_array_equal(course.alive[1:], 0)
    np.testing.assert_array_equal(course.reward[1:], 0)
    assert np.all(np.asarray(plan.worth(course)) < 0)


@pytest.mark.slow(besides="parameters-cem")
@pytest.mark.parametrize("method", ["cem", "mppi"])
@pytest.mark.parametrize("moves", MOVES)
def test_what_is_found_is_worth_more_than_what_the_policy_proposes(planning, moves, method):
    plan = planning(moves, method=method, candidates=64, elites=8, iterations=5, reach=1.0)
    found = jax.jit(lambda: plan.better(STATES, plan.none(3), KEY))()
    own = plan.worth(course_of(plan, STATES, plan.none(3)[None]))[0]  # these models have no noise
    np.testing.assert_allclose(found.first, own, rtol=1e-4, atol=1e-5)
    course = course_of(plan, STATES, found.best[None])
    np.testing.assert_allclose(found.value, plan.worth(course)[0], rtol=1e-4, atol=1e-5)
    assert np.all(np.asarray(found.value - found.first) > 0.01)
    assert np.all(np.abs(course.mean) <= 0.9 * REACH)


@pytest.mark.slow
@pytest.mark.parametrize("moves", MOVES)
def test_all_candidates_of_a_search_meet_the_same_noise_of_the_models(planning, moves):
    plan = planning(moves, noise=0.5, candidates=32, reach=1e-6)
    found = jax.jit(lambda: plan.better(STATES, plan.none(3), KEY))()
    np.testing.assert_allclose(found.value, found.first, atol=1e-4)  # the best of 32 would have been lucky
    course = course_of(plan, STATES, plan.none(3)[None])
    assert np.all(np.abs(course.states[1] - course_of(planning(moves), STATES, plan.none(3)[None]).states[1]) > 0)


@pytest.mark.parametrize("moves", MOVES)
def test_each_search_draws_candidates_of_its_own(planning, moves):
    plan = planning(moves, reach=0.5)
    found = jax.jit(lambda: plan.better(jnp.full((4, 1), 0.8), plan.none(4), KEY))()
    best = np.asarray(found.best).reshape(4, -1)
    assert all(np.any(best[one] != best[other]) for one in range(4) for other in range(one))


@pytest.mark.slow
def test_plans_that_do_not_fit_into_memory_at_once_are_searched_for_block_by_block(planning, monkeypatch):
    states = jnp.linspace(-1, 1, 6)[:, None]

    def found(most):
        plan = planning("parameters", candidates=8)
        size = plan._size(plan.none(1)[0])
        monkeypatch.setattr(plans, "_HELD", most * size)
        lowered = jax.jit(lambda key: plan.better(states, plan.none(6), key)).lower(KEY)
        drawn = f"tensor<{plans._block(6, size)}x8x{plan.none(1).size}xf32>"
        assert drawn in lowered.as_text()
        return lowered.compile()(KEY)

    together = found(6)
    for most in (5, 2, 1, 0):  # in blocks of 3, 2, 1 and 1
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found(most), together)


@given(count=st.integers(1, 500), size=st.integers(1, 2**28))
def test_blocks_are_equal_and_as_long_as_may_be(count, size):
    block = plans._block(count, size)
    assert count % block == 0
    assert block == 1 or block * size <= plans._HELD
    assert not any(longer * size <= plans._HELD for longer in range(block + 1, count + 1) if count % longer == 0)


def test_what_is_left_of_a_plan_is_all_but_its_first_step(planning):
    actions, parameters = planning("actions"), planning("parameters")
    plans = jnp.arange(12.0).reshape(3, 4, 1)
    left = actions.left(plans)
    np.testing.assert_array_equal(left[:, :3], plans[:, 1:])
    np.testing.assert_array_equal(left[:, 3], 0)
    moved = parameters.none(3) + 1
    np.testing.assert_array_equal(parameters.left(moved), moved)  # moved parameters act at every step


def test_parameters_of_the_deviation_are_left_alone(planning):
    plan = planning("parameters")
    moved = plan.policies(plan._deviation())
    np.testing.assert_array_equal(moved.net.weights[-1][:, 1:], plan.policy.net.weights[-1][:, 1:])
    np.testing.assert_array_equal(moved.net.biases[-1][1:], plan.policy.net.biases[-1][1:])
    assert np.all(np.asarray(moved.net.weights[-1][:, :1] != plan.policy.net.weights[-1][:, :1]))
    assert np.all(np.asarray(moved.net.weights[0] != plan.policy.net.weights[0]))
