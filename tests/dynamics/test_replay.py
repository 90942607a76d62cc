import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdpo.dynamics.replay import Replay, draw_below, episodes_of, row_width

D, M = 2, 1
WIDTH = row_width(D, M)
append = jax.jit(Replay.append)
draw_many = jax.jit(lambda key, size: draw_below(key, (500,), size))


def rows(first, count):
    """Distinct numbers everywhere."""
    return (first + np.arange(count, dtype=np.float32))[:, None] * 100 + np.arange(WIDTH, dtype=np.float32)


def filled(count, capacity):
    return append(Replay.empty(D, M, capacity), jnp.asarray(rows(0, count)), jnp.asarray(count))


def test_rows_are_kept_in_order_and_padding_is_overwritten():
    replay = Replay.empty(D, M, 12)
    padded = np.concatenate([rows(0, 3), np.full((2, WIDTH), -1, np.float32)])
    replay = append(replay, jnp.asarray(padded), jnp.asarray(3))
    assert replay.size == 3
    np.testing.assert_array_equal(replay.valid, np.arange(12) < 3)
    replay = append(replay, jnp.asarray(rows(3, 5)), jnp.asarray(5))
    assert replay.size == 8
    np.testing.assert_array_equal(replay.rows[:8], rows(0, 8))


def test_a_run_goes_on_to_the_end_of_its_episode_and_among_the_rows_that_it_may_use():
    states = np.array([0, 1, 2, 3, 10, 11, 20, 21, 22, 23], np.float32)[:, None] * np.ones(D, np.float32)
    kept = np.zeros((12, WIDTH), np.float32)
    kept[:10, :D], kept[:10, D + M + 1 : -2] = states, states + 1
    kept[:10, -1] = [3, 3, 3, 3, 4, 4, 5, 5, 5, 5]
    replay = Replay(jnp.asarray(kept), jnp.asarray(10), D, M)
    among = jnp.ones(12, bool).at[8].set(False)
    index = jnp.array([[0, 2, 3], [5, 6, 9]])
    taken, counts = jax.jit(lambda r: r.runs(index, 3, among))(replay)
    expected = [[[1, 1, 1], [1, 1, 0], [1, 0, 0]], [[1, 0, 0], [1, 1, 0], [1, 0, 0]]]
    np.testing.assert_array_equal(np.moveaxis(np.asarray(counts), 0, -1), expected)
    np.testing.assert_array_equal(taken.observation[0], states[np.asarray(index)])
    np.testing.assert_array_equal(taken.observation[:, 0, 0, 0], [0, 1, 2])
    np.testing.assert_array_equal(taken.next[0], taken.observation[0] + 1)


def test_a_start_where_an_episode_ended_is_no_run():
    kept = np.zeros((3, WIDTH), np.float32)  # nothing ever moves
    kept[1:, -1] = 1
    counts = Replay(jnp.asarray(kept), jnp.asarray(3), D, M).runs(jnp.arange(2), 2, jnp.ones(3, bool))[1]
    np.testing.assert_array_equal(counts, [[1, 1], [0, 1]])


def test_rows_are_observation_action_reward_next_and_end():
    one = filled(3, 4).transitions(jnp.array([2]))
    expected = rows(2, 1)[0]
    np.testing.assert_array_equal(one.observation[0], expected[:2])
    np.testing.assert_array_equal(one.action[0], expected[2:3])
    np.testing.assert_array_equal(one.reward[0], expected[3])
    np.testing.assert_array_equal(one.next[0], expected[4:6])
    np.testing.assert_array_equal(one.terminated[0], expected[6])
    assert filled(3, 4).episodes[2] == expected[7]


def test_a_run_does_not_go_on_beyond_the_last_row():
    full = Replay(jnp.zeros((2, WIDTH)), jnp.asarray(2), D, M)
    counts = full.runs(jnp.arange(2), 3, jnp.ones(2, bool))[1]
    np.testing.assert_array_equal(counts, [[1, 1], [1, 0], [0, 0]])


def test_episodes_of_rows_that_do_not_tell_theirs_are_found_by_where_they_begin():
    states = np.array([0, 1, 2, 0, 1, 5, 6], np.float32)[:, None] * np.ones(D, np.float32)
    kept = np.zeros((7, WIDTH - 1), np.float32)
    kept[:, :D], kept[:, D + M + 1 : -1] = states, states + 1
    kept[4, -1], kept[4, D + M + 1 : -1] = 1.0, 5.0  # ends where the next episode begins; the one before was cut off
    np.testing.assert_array_equal(episodes_of(kept, D), [0, 0, 0, 1, 1, 2, 2])
    assert episodes_of(kept[:0], D).shape == (0,)


@settings(derandomize=True, max_examples=20, deadline=None)
@given(size=st.integers(1, 10**6), seed=st.integers(0, 10**6))
def test_draws_lie_below_the_size(size, seed):
    drawn = np.asarray(draw_many(jax.random.key(seed), jnp.asarray(size)))
    assert drawn.min() >= 0
    assert drawn.max() < size


@pytest.mark.parametrize("size", [1, 3, 2**24, 2**24 + 2, 2**30])
def test_a_draw_that_rounds_up_does_not_reach_the_size(size, monkeypatch):
    largest = np.nextafter(np.float32(1), np.float32(0))
    monkeypatch.setattr(jax.random, "uniform", lambda key, shape: jnp.full(shape, largest))
    assert draw_below(jax.random.key(0), (1,), jnp.asarray(size))[0] < size


def test_every_row_is_drawn_about_equally_often():
    counts = np.bincount(draw_many(jax.random.key(0), jnp.asarray(5)), minlength=5)
    np.testing.assert_allclose(counts, 100, atol=45)  # five standard deviations


def test_draws_do_not_depend_on_the_capacity():
    draw = eqx.filter_jit(lambda replay, key: replay.draw(key, (2, 20)))
    small, large = (draw(filled(10, capacity), jax.random.key(3)) for capacity in (16, 32))
    jax.tree.map(np.testing.assert_array_equal, small, large)
    assert small.observation.shape == (2, 20, D)
