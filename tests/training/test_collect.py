"""Real episodes follow from numbers, not from hidden state."""

import numpy as np
import pytest

from cdpo.tasks import find_task
from cdpo.training.collect import evaluation, initial_states, pink_noise, streams, training_life


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


def lived(environment, task, number, noise="white", random=True):
    """An episode of seed 0 whose actions are nothing but noise, from its beginning to its end."""
    life = training_life(environment, task, 0, number, noise, random=random)
    life.go(None, task.horizon)
    assert life.over
    return life


def test_an_episode_depends_on_its_seed_and_number_alone():
    task = find_task("inverted-pendulum")
    used, fresh = task.make(), task.make()
    lived(used, task, 0)
    again, same = (lived(each, task, 1) for each in (used, fresh))
    np.testing.assert_array_equal(again.rows, same.rows)
    assert again.ended and again.rows[-1, -2] == 1 and not again.rows[:-1, -2].any()
    np.testing.assert_array_equal(initial_states(used, task, 5), initial_states(fresh, task, 5))


def test_rows_end_with_the_number_of_their_episode():
    task = find_task("pendulum-swingup", horizon=5)
    numbers = [set(lived(task.make(), task, number).rows[:, -1]) for number in (0, 1, 2**24 - 1)]
    assert numbers == [{0.0}, {1.0}, {2.0**24 - 1}]


def test_a_time_limit_is_no_end_and_rows_join():
    task = find_task("pendulum-swingup", horizon=30)
    episode = lived(task.make(), task, 0)
    assert episode.rows.shape == (30, 8) and not episode.ended and not episode.rows[:, -2].any()
    np.testing.assert_array_equal(episode.rows[1:, :2], episode.rows[:-1, 4:6])
    assert np.abs(episode.rows[:, 2]).max() <= 1
    assert episode.total == pytest.approx(episode.rows[:, 3].sum(), abs=1e-4)


@pytest.mark.parametrize("name", ["inverted-pendulum", "pendulum-swingup"])  # one ends early, one at its time limit
def test_by_stretches_an_episode_is_what_it_is_at_once(name):
    task = find_task(name, horizon=30)
    whole, life = lived(task.make(), task, 0), training_life(task.make(), task, 0, 0, "white", random=True)
    parts = []
    while not life.over:
        parts.append(life.go(None, 4))
    assert [len(part) for part in parts[:-1]] == [4] * (len(parts) - 1) and 1 <= len(parts[-1]) <= 4
    np.testing.assert_array_equal(np.concatenate(parts), whole.rows)
    np.testing.assert_array_equal(life.rows, whole.rows)
    assert (life.steps, life.total, life.ended) == (whole.steps, whole.total, whole.ended)
    assert len(life.go(None, 4)) == 0  # it is over


@pytest.mark.parametrize("random", [True, False])
def test_noise_is_pink_or_white_and_random_actions_are_uniform_with_either(random):
    task = find_task("pendulum-swingup")
    episodes = {
        noise: [lived(task.make(), task, number, noise, random).rows[:, 2] for number in range(8)]
        for noise in ("pink", "white")
    }
    following = {noise: [np.corrcoef(x[1:], x[:-1])[0, 1] for x in each] for noise, each in episodes.items()}
    assert min(following["pink"]) > 0.5 and max(np.abs(following["white"])) < 0.15
    for each in map(np.concatenate, episodes.values()):
        if random:
            assert np.abs(each).max() <= 1 and each.std() == pytest.approx(3**-0.5, abs=0.05)
            np.testing.assert_allclose(np.quantile(each, [0.25, 0.5, 0.75]), [-0.5, 0.0, 0.5], atol=0.15)
        else:
            assert each.std() == pytest.approx(1, abs=0.1)


class Witness:
    """An environment that pays one in every step, and writes down by which seeds it was reset."""

    def __init__(self):
        self.seeds = []

    def reset(self, *, seed):
        self.seeds.append(seed)
        return np.zeros(2), {}

    def step(self, action):
        return np.zeros(2), 1.0, False, False, {}


class Still:
    """Does nothing, and writes down by which noise."""

    def __init__(self):
        self.noise = []

    def begin(self, episode):
        pass

    def __call__(self, observation, noise=None):
        self.noise.append(noise)
        return np.zeros(1)


def test_evaluations_are_by_the_mode_and_begin_elsewhere_than_training():
    task, witness, policy = find_task("pendulum-swingup", horizon=3), Witness(), Still()
    assert evaluation(witness, task, policy, 5, 1, 4) == [3.0] * 4
    assert policy.noise == [None] * 12
    for episode in range(4):
        training_life(witness, task, 5, episode, "white").go(policy, 1)
    assert len(set(witness.seeds)) == 8
