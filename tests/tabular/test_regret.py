import numpy as np
import pytest

from cdpo.tabular.agents import Oracle, Random
from cdpo.tabular.regret import regret
from cdpo.tabular.simulation import Run


def make_run(reward, *, expected=None, gap=0.0, average=1.0, period=2, steps=None, agent=None):
    reward = np.asarray(reward, np.float32)
    seeds, blocks = reward.shape
    return Run(
        agent=agent or Random(),
        seeds=np.arange(seeds),
        steps=steps or blocks * period,
        period=period,
        reward=reward,
        expected=reward if expected is None else np.asarray(expected, np.float32),
        value_gap=np.broadcast_to(np.float32(gap), reward.shape),
        average=np.full(seeds, average, np.float32),
        ledger=None,
    )


def test_every_form_by_hand():
    oracle = make_run([[2, 2, 2, 2], [3, 1, 2, 2]], agent=Oracle())
    run = make_run([[1, 0, 2, 2], [1, 1, 1, 1]], expected=[[1, 1, 1.5, 2], [0, 0, 0, 0]], gap=0.25)
    found = regret(run, oracle)
    np.testing.assert_array_equal(found.ends, [2, 4, 6, 8])
    np.testing.assert_allclose(found.realised, [[1, 3, 3, 3], [2, 2, 3, 4]])
    np.testing.assert_allclose(found.expected, [[1, 2, 2.5, 2.5], [2, 4, 6, 8]])
    np.testing.assert_allclose(found.value, [[0.25, 0.5, 0.75, 1.0]] * 2)
    np.testing.assert_allclose(found.oracle, [[2, 4, 6, 8], [3, 4, 6, 8]])
    np.testing.assert_allclose(found.normalised, [3 / 8, 4 / 8])


def test_an_unfinished_last_block_counts_its_own_steps():
    oracle, run = (make_run([[2, 2, 1]], steps=5) for _ in range(2))
    found = regret(run, oracle)
    np.testing.assert_array_equal(found.ends, [2, 4, 5])
    np.testing.assert_allclose(found.expected, [[0, 0, 0]])


def test_the_oracle_may_have_another_period():
    oracle = make_run([[4.0, 4.0]], period=4)
    run = make_run([[0.0, 0, 0, 0]], period=2)
    np.testing.assert_allclose(regret(run, oracle).realised, [[2, 4, 6, 8]])


def test_the_oracle_has_no_regret_against_itself():
    oracle = make_run([[1.0, 2.0, 3.0]])
    found = regret(oracle, oracle)
    np.testing.assert_array_equal(found.realised, 0)
    np.testing.assert_array_equal(found.normalised, 0)


def test_normalised_regret_is_not_a_number_where_the_oracle_earns_nothing():
    found = regret(make_run([[-1.0, -1.0]]), make_run([[0.0, 0.0]]))
    assert np.isnan(found.normalised).all()


def test_normalised_regret_keeps_its_sign_where_the_oracle_loses():
    found = regret(make_run([[-3.0, -3.0]]), make_run([[-1.0, -1.0]]))
    np.testing.assert_allclose(found.normalised, [2.0])


def test_stuck_seeds_lose_more_than_half_in_the_second_half():
    rows = [
        [0, 0, 2, 2],  # learned late
        [2, 2, 0, 0],  # lost it again
        [0, 0, 0.9, 0.9],  # still loses 55%
        [0, 0, 1.1, 1.1],  # loses 45%
    ]
    oracle = make_run([[2.0] * 4] * 4)
    np.testing.assert_array_equal(regret(make_run(rows), oracle).stuck, [False, True, True, False])


def test_stuck_with_a_single_block():
    np.testing.assert_array_equal(regret(make_run([[0.0], [2.0]]), make_run([[2.0]] * 2)).stuck, [True, False])


def test_sums_do_not_lose_small_rewards():
    """Cumulated in float32, a hundred thousand rewards of 0.1 would be off by more than one."""
    run = make_run(np.full((1, 100_000), 0.1), period=1)
    oracle = make_run(np.zeros((1, 100_000)), period=1)
    assert regret(run, oracle).realised[0, -1] == pytest.approx(-np.float64(np.float32(0.1)) * 100_000, abs=1e-6)
