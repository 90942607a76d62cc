"""Real episodes follow from numbers, not from hidden state."""

import numpy as np
import pytest

from cdpo.tasks import find_task
from cdpo.training.collect import initial_states, pink_noise, streams, training_episode


def test_pink_noise_has_unit_variance_and_power_that_falls_with_the_frequency():
    random = np.random.default_rng(0)
    noise = np.concatenate([pink_noise(random, 256, 4) for _ in range(500)], axis=1)
    assert noise.shape == (256, 2000)
    assert abs(noise.mean()) < 0.02 and abs(noise.var() - 1) < 0.05
    power = np.mean(np.abs(np.fft.rfft(noise, axis=0)) ** 2, axis=1)[4:64]
    slope = np.polyfit(np.log(np.arange(4, 64)), np.log(power), 1)[0]
    assert slope == pytest.approx(-1, abs=0.1)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_pink_noise_of_few_steps_is_finite(steps):
    assert np.isfinite(pink_noise(np.random.default_rng(0), steps, 2)).all()


def test_streams_differ_by_every_number_they_are_made_from():
    seeds = {streams(*numbers)[0] for numbers in [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)]}
    assert len(seeds) == 5
    assert streams(3, 1, 4)[0] == streams(3, 1, 4)[0]


def test_an_episode_depends_on_its_seed_and_number_alone():
    task = find_task("inverted-pendulum")
    used, fresh = task.make(), task.make()
    training_episode(used, task, None, 0, 0, pink=True)
    again, same = (training_episode(each, task, None, 0, 1, pink=True) for each in (used, fresh))
    np.testing.assert_array_equal(again.rows, same.rows)
    assert again.ended and again.rows[-1, -1] == 1 and not again.rows[:-1, -1].any()
    np.testing.assert_array_equal(initial_states(used, 5), initial_states(fresh, 5))


def test_a_time_limit_is_no_end_and_rows_join():
    task = find_task("pendulum-swingup", horizon=30)
    episode = training_episode(task.make(), task, None, 0, 0, pink=True)
    assert episode.rows.shape == (30, 7) and not episode.ended and not episode.rows[:, -1].any()
    np.testing.assert_array_equal(episode.rows[1:, :2], episode.rows[:-1, 4:6])
    assert np.abs(episode.rows[:, 2]).max() <= 1
    assert episode.total == pytest.approx(episode.rows[:, 3].sum(), abs=1e-4)


def test_noise_is_pink_or_white():
    task = find_task("pendulum-swingup")
    pink, white = (training_episode(task.make(), task, None, 0, 0, pink=each).rows[:, 2] for each in (True, False))
    assert np.corrcoef(pink[1:], pink[:-1])[0, 1] > 0.5
    assert abs(np.corrcoef(white[1:], white[:-1])[0, 1]) < 0.15
    assert white.std() == pytest.approx(3**-0.5, abs=0.05)  # uniform in [-1, 1]
