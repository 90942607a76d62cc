import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdpo.dynamics.models import reference_model, sampled_models
from cdpo.dynamics.replay import Transition
from cdpo.solvers.rollouts import foresight, imagine, look_ahead, model_values, n_step

KEY = jax.random.key(0)
STEP = np.array([[[-0.5, 0.2], [0.1, -0.3], [0.4, 0.6]], [[0.3, 0.0], [-0.2, 0.1], [1.0, -1.0]]])
sums = eqx.filter_jit(n_step)


def reward(observation, action, following):
    return 2 * observation[..., 0] + action[..., 0] - following[..., -1]


def state_reached(observation, action, following):
    return following[..., 0]


def low(observation, action, following):
    return following[..., 0] < 0.3


def by_hand(taken, steps, discount):
    """Sums of up to `steps` rewards, for each transition by itself."""
    total, following, weight = (np.zeros_like(part) for part in (taken.reward, taken.next, taken.reward))
    length = len(total)
    for t, row in np.ndindex(total.shape):
        scale = 1.0
        for k in range(t, min(t + steps, length)):
            total[t, row] += scale * taken.reward[k, row]
            following[t, row] = taken.next[k, row]
            scale *= discount * (1 - taken.terminated[k, row])
            if scale == 0:
                break
        weight[t, row] = scale
    return total, following, weight


@settings(derandomize=True, max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    steps=st.sampled_from([1, 3, 9]),
    ending=st.sampled_from([0.0, 0.3, 1.0]),
    length=st.sampled_from([1, 4, 6]),
)
def test_returns_reach_some_steps_ahead_but_not_past_an_end_or_the_last_step(seed, steps, ending, length):
    rng = np.random.default_rng(seed)
    draw = lambda *tail: rng.normal(size=(6, 4, *tail)).astype(np.float32)  # noqa: E731
    taken = Transition(draw(2), draw(1), draw(), draw(2), (rng.random((6, 4)) < ending).astype(np.float32))
    seen = sums(taken, steps, 0.9)
    for part, expected in zip((seen.reward, seen.next, seen.discount), by_hand(taken, steps, 0.9), strict=True):
        np.testing.assert_allclose(part, expected, rtol=1e-4, atol=1e-5)
    short = jax.tree.map(lambda part: part[:length], taken)
    seen = jax.tree.map(lambda part: part[:length], sums(taken, steps, 0.9, jnp.asarray(length)))
    for part, expected in zip((seen.reward, seen.next, seen.discount), by_hand(short, steps, 0.9), strict=True):
        np.testing.assert_allclose(part, expected, rtol=1e-4, atol=1e-5)
    taken = short
    np.testing.assert_array_equal(seen.observation, taken.observation)
    np.testing.assert_array_equal(seen.action, taken.action)


def rollouts(seen):
    """[M, horizon, particles, ...]"""
    return jax.tree.map(lambda x: np.moveaxis(np.asarray(x), 0, 1), seen)


def test_imagined_trajectories_are_those_of_the_true_system_and_keep_their_model(
    linear_task, linear_belief, some_policy, starts_at
):
    task = linear_task(reward, observations=2)
    models = sampled_models(linear_belief(task, [np.zeros((3, 2)), *STEP]), 2, "subset", KEY)
    policy, starts = some_policy(task), starts_at([[0.5, -0.5], [1.0, 0.0]])
    run = eqx.filter_jit(lambda key: imagine(policy, models, starts, key, particles=3, horizon=5))
    seen = rollouts(run(KEY))
    for i, head in enumerate(np.asarray(models.heads)[:, 0]):
        move = np.concatenate([seen.observation[i], seen.action[i]], axis=-1) @ STEP[head - 1]
        np.testing.assert_allclose(seen.next[i], seen.observation[i] + move, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(seen.observation[:, 1:], seen.next[:, :-1])
    assert {tuple(first) for first in seen.observation[:, 0].reshape(-1, 2).tolist()} <= {(0.5, -0.5), (1.0, 0.0)}
    np.testing.assert_allclose(seen.reward, reward(seen.observation, seen.action, seen.next), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(seen.terminated, 0)
    assert len(np.unique(seen.action)) == seen.action.size  # every step has noise of its own
    again, other = rollouts(run(KEY)), rollouts(run(jax.random.key(1)))
    np.testing.assert_array_equal(again.action, seen.action)
    assert np.all(other.action != seen.action)


def test_a_particle_whose_task_ends_begins_anew_at_a_start(linear_task, linear_belief, some_policy, starts_at):
    task = linear_task(reward, low)
    models = reference_model(linear_belief(task, [[[-0.5], [0.0]]] * 2), 2)  # s' = s / 2: 1, 0.5, 0.25 ends
    policy, starts = some_policy(task), starts_at([[1.0]])
    run = eqx.filter_jit(lambda key: n_step(imagine(policy, models, starts, key, particles=2, horizon=5), 2, 0.9))
    seen = rollouts(run(KEY))
    for each in np.ndindex(2, 2):
        index = (each[0], slice(None), each[1])
        np.testing.assert_allclose(seen.observation[index][:, 0], [1, 0.5, 1, 0.5, 1])
        np.testing.assert_allclose(seen.next[index][:, 0], [0.25, 0.25, 0.25, 0.25, 0.5])
        np.testing.assert_allclose(seen.discount[index], [0, 0, 0, 0, 0.9], rtol=1e-6)


@pytest.mark.parametrize("terminates", [None, low])
def test_a_look_ahead_has_the_discounted_value_and_draws_states_by_their_discounted_visits(
    linear_task, linear_belief, some_policy, starts_at, terminates
):
    task = linear_task(state_reached, **({} if terminates is None else {"terminates": terminates}))
    model = reference_model(linear_belief(task, [[[-0.5], [0.0]]]), 1)  # actions do nothing
    path = 0.5 ** np.arange(7)  # ends at the step to 0.25, where it ends
    visited = path[:6] if terminates is None else path[:2]
    weight = 0.8 ** np.arange(len(visited))
    outlook = eqx.filter_jit(look_ahead)(
        some_policy(task), model, starts_at([[1.0]], weights=(0.0, 0.5, 0.5)), KEY,
        discount=0.8, horizon=6, particles=4, sets=2, states=400,
    )  # fmt: skip
    assert outlook.value == pytest.approx(np.sum(weight * path[1 : 1 + len(visited)]), rel=1e-5)
    assert outlook.states.shape == (2, 400, 1)
    for states in np.asarray(outlook.states)[..., 0]:
        share = [np.mean(np.isclose(states, state)) for state in visited]
        np.testing.assert_allclose(share, weight / weight.sum(), atol=0.01)
        assert sum(share) == pytest.approx(1)


def test_sets_of_states_come_from_different_trajectories(linear_task, linear_belief, some_policy, starts_at):
    task = linear_task(state_reached)
    model = reference_model(linear_belief(task, [[[0.0], [1.0]]]), 1)
    outlook = eqx.filter_jit(look_ahead)(
        some_policy(task), model, starts_at([[0.0]]), KEY, discount=0.9, horizon=6, particles=6, sets=3, states=50
    )
    groups = [set(np.unique(states)) - {0.0} for states in np.asarray(outlook.states)]
    assert all(groups)
    assert not (groups[0] & groups[1] or groups[0] & groups[2] or groups[1] & groups[2])


def test_starts_mix_initial_visited_and_broad_states_by_their_weights(starts_at):
    visited = np.array([[5.0, 0, 0, 9.0, 0], [6.0, 0, 0, 9.0, 0]])
    starts = starts_at([[3.0], [4.0]], weights=(1.0, 2.0, 1.0), visited=visited, low=-2.0, high=-1.0)
    drawn = np.asarray(eqx.filter_jit(starts.draw)(KEY, (4000,)))[:, 0]
    initial, seen, broad = np.isin(drawn, [3, 4]), np.isin(drawn, [5, 6]), (drawn >= -2) & (drawn <= -1)
    np.testing.assert_allclose([initial.mean(), seen.mean(), broad.mean()], [0.25, 0.5, 0.25], atol=0.03)
    assert {3, 4, 5, 6} <= set(drawn.tolist())
    assert np.all(initial | seen | broad)
    assert set(np.asarray(starts.only_initial().draw(KEY, (100,)))[:, 0].tolist()) == {3, 4}


def test_a_policy_has_a_value_under_each_model_alone(linear_task, linear_belief, some_policy, starts_at):
    task = linear_task(state_reached)
    models = sampled_models(linear_belief(task, [[[9.0], [9.0]], [[0.1], [0.0]], [[-0.5], [0.0]]]), 2, "subset", KEY)
    found = jax.jit(lambda: model_values(some_policy(task), models, starts_at([[2.0]]), KEY, 0.8))()
    steps = np.arange(foresight(task, 0.8))
    expected = [np.sum(0.8**steps * 2 * growth ** (steps + 1)) for growth in (1.1, 0.5)]
    np.testing.assert_allclose(np.sort(found), np.sort(expected), rtol=1e-4)
