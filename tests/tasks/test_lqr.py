"""The linear task against its closed form, and the closed form against theory."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import solve_discrete_are

from cdpo.errors import UserError
from cdpo.tasks import TASKS, check_task, lqr_step
from cdpo.tasks.lqr import BOUND, START, SYSTEM
from cdpo.tasks.riccati import System, backward, finite, linear_return, optimal_return, stationary

TASK = TASKS["lqr"]
H = TASK.horizon
DISCOUNT = 0.99
some = settings(derandomize=True, max_examples=30, deadline=None)


@st.composite
def systems(draw):
    """Random, open-loop stable, with costs of every direction."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    n, m = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    A = rng.normal(size=(n, n))
    A *= draw(st.floats(0.1, 0.98)) / max(np.abs(np.linalg.eigvals(A)))
    root, other = rng.normal(size=(n, n)), rng.normal(size=(m, m))
    Q, R = root @ root.T + 0.01 * np.eye(n), other @ other.T + 0.1 * np.eye(m)
    return System(A, rng.normal(size=(n, m)), Q, R, draw(st.floats(0, 1)))


def repeated(gain, steps=H):
    return np.broadcast_to(gain, (steps, *gain.shape))


def simulated(gains, episodes, deviation=0.0, seed=0):
    """Returns of the real environment, and the largest action."""
    env, random, returns, largest = TASK.make(), np.random.default_rng(seed), [], 0.0
    for episode in range(episodes):
        state, _ = env.reset(seed=episode)
        total = 0.0
        for gain in gains:
            action = -gain @ state + deviation * random.standard_normal(2)
            largest = max(largest, np.abs(action).max())
            state, reward, *_ = env.step(action)
            total += reward
        returns.append(total)
    return np.array(returns), largest


def test_nothing_is_wrong_with_the_task():
    report = check_task(TASK)
    assert report.problems == ()
    assert report.lengths == (H,) * 3


def test_there_is_no_picture_of_it():
    with pytest.raises(UserError, match="nothing to see"):
        TASK.make("rgb_array")


def test_jax_knows_the_mean_of_the_next_state():
    env, random = TASK.make().unwrapped, np.random.default_rng(0)
    env.reset(seed=0)
    states, actions = random.uniform(-5, 5, (500, 3)), random.uniform(-3, 3, (500, 2))  # beyond the bounds, both clip
    real = []
    for state, action in zip(states, actions, strict=True):
        env.set_state(state)
        real.append(env.step(action)[0])
    apart = np.stack(real) - lqr_step(jnp.asarray(states, jnp.float32), jnp.asarray(actions, jnp.float32))
    np.testing.assert_allclose(apart.mean(axis=0), 0, atol=4 * SYSTEM.noise / np.sqrt(500))
    np.testing.assert_allclose(np.cov(apart.T), SYSTEM.noise**2 * np.eye(3), atol=0.15 * SYSTEM.noise**2)


def test_without_control_it_runs_away():
    assert max(np.abs(np.linalg.eigvals(SYSTEM.A))) > 1
    assert linear_return(SYSTEM, START, np.zeros((H, 2, 3))) < 8 * optimal_return(SYSTEM, START, H)


def test_the_best_gains_earn_what_the_closed_form_says_and_no_action_is_clipped():
    gains, _ = finite(SYSTEM, H)
    returns, largest = simulated(gains, 1000)
    error = returns.std() / np.sqrt(len(returns))
    assert abs(returns.mean() - optimal_return(SYSTEM, START, H)) < 3 * error
    assert error < 0.02 * abs(returns.mean())
    assert largest < BOUND


def test_from_the_farthest_initial_states_the_best_action_is_far_from_the_bounds():
    corners = np.stack(np.meshgrid(*[[-1.0, 1.0]] * 3), axis=-1).reshape(-1, 3)
    gains, _ = finite(SYSTEM, H)
    for gain in gains:  # the image of a box under a linear map lies between those of its corners
        actions = -corners @ gain.T
        assert np.abs(actions).max() < 0.75 * BOUND
        corners = corners @ SYSTEM.A.T + actions @ SYSTEM.B.T


def test_a_noisy_linear_policy_earns_what_its_second_moments_say():
    gain, _ = stationary(SYSTEM, DISCOUNT)
    returns, largest = simulated(repeated(0.8 * gain), 1000, deviation=0.1)
    assert largest < BOUND
    error = returns.std() / np.sqrt(len(returns))
    assert abs(returns.mean() - linear_return(SYSTEM, START, repeated(0.8 * gain), 0.1)) < 3 * error


def test_what_agents_optimise_costs_an_episode_little():
    """They plan for discounted costs without end, and are judged by the costs of an episode."""
    best = optimal_return(SYSTEM, START, H)
    assert 1.01 * best < linear_return(SYSTEM, START, repeated(stationary(SYSTEM, DISCOUNT)[0])) < best


@some
@given(system=systems(), discount=st.floats(0.5, 1.0))
def test_the_stationary_solution_is_a_fixed_point_that_scipy_knows(system, discount):
    gain, ahead = stationary(system, discount)
    again, here = backward(system, ahead, discount)
    scale = np.max(np.abs(ahead))
    np.testing.assert_allclose(here, ahead, atol=1e-11 * scale)
    np.testing.assert_allclose(again, gain, atol=1e-9 * max(1, np.max(np.abs(gain))))
    root = np.sqrt(discount)
    known = solve_discrete_are(root * system.A, root * system.B, system.Q, system.R)
    np.testing.assert_allclose(ahead, known, atol=1e-6 * scale)


@some
@given(system=systems(), steps=st.integers(1, 20), seed=st.integers(0, 1000))
def test_the_best_gains_have_the_optimal_return_and_no_others_have_more(system, steps, seed):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=system.A.shape)
    start = root @ root.T
    gains, ahead = finite(system, steps)
    best = optimal_return(system, start, steps)
    assert linear_return(system, start, gains) == pytest.approx(best, rel=1e-9)
    assert linear_return(system, start, gains + 0.1 * rng.normal(size=gains.shape)) <= best
    assert linear_return(system, start, gains, deviation=0.1) < best
    np.testing.assert_array_equal(ahead[-1], 0)


def test_a_system_that_cannot_be_held_is_an_error():
    lost = System(np.array([[1.1]]), np.zeros((1, 1)), np.eye(1), np.eye(1), 0.0)
    with pytest.raises(ValueError, match="cannot be held"):
        stationary(lost)
