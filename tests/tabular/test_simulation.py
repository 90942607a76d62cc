import hashlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from cdpo.errors import UserError
from cdpo.tabular import simulation
from cdpo.tabular.agents import BQL, CDPO, MM, PSRL, UBE, UCRL, Greedy, Oracle, QLearning, Random
from cdpo.tabular.environments import Bandit, Chain, DeepSea, PriorMDP
from cdpo.tabular.mdp import FiniteMDP
from cdpo.tabular.regret import regret
from cdpo.tabular.simulation import simulate

# 70 blocks of 6 steps: more than one segment, so that all runs here use one executable for each agent.
STEPS = 420


def run(agent, **settings):
    return simulate(Chain(5), agent, **{"seeds": 8, "steps": STEPS, "ledger": True} | settings)


def fields(result):
    return [result.reward, result.expected, result.value_gap, *(result.ledger or ())]


def assert_equal_bits(one, other):
    for x, y in zip(fields(one), fields(other), strict=True):
        np.testing.assert_array_equal(x, y)


def rows(result, chosen, blocks=slice(None)):
    return [field[chosen, blocks] for field in fields(result)]


@pytest.mark.slow(besides="psrl")
@pytest.mark.parametrize("agent", [PSRL(), CDPO()], ids=["psrl", "cdpo"])
def test_a_seed_has_the_same_bits_in_any_batch(agent):
    batch = run(agent, seeds=12)
    assert len(np.unique(batch.reward[:, -1])) == 12
    for first, seeds in ((9, 1), (6, 3)):
        part = run(agent, seed=first, seeds=seeds)
        np.testing.assert_array_equal(part.seeds, np.arange(first, first + seeds))
        for x, y in zip(fields(part), rows(batch, slice(first, first + seeds)), strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.slow
@pytest.mark.parametrize("agent", [PSRL(), CDPO()], ids=["psrl", "cdpo"])
def test_a_longer_run_begins_as_a_shorter_one(agent, chain_run):
    short, long = run(agent), chain_run(agent)
    for x, y in zip(fields(short), rows(long, slice(8), slice(STEPS // 6)), strict=True):
        np.testing.assert_array_equal(x, y)


def test_the_segment_changes_nothing():
    settings = {"seeds": 8, "steps": 60}
    assert_equal_bits(*(simulate(Chain(5), Random(), segment=segment, **settings) for segment in (4, 3)))


@pytest.mark.slow
def test_the_segment_changes_nothing_in_what_an_agent_learns():
    assert_equal_bits(run(PSRL()), run(PSRL(), segment=17))


def test_a_seeds_mdp_does_not_depend_on_the_agent():
    one, other = (simulate(Bandit(4), agent, seeds=8, steps=8) for agent in (Random(), Oracle()))
    np.testing.assert_array_equal(one.average, other.average)
    assert len(np.unique(one.average)) == 8


def digest(result):
    return hashlib.sha256(b"".join(np.ascontiguousarray(field).tobytes() for field in fields(result))).hexdigest()


PROGRAM = """
import hashlib
import numpy as np
from cdpo.tabular import {agent}, Chain, simulate
run = simulate(Chain(5), {agent}(), seeds=8, steps={steps}, ledger=True)
fields = [run.reward, run.expected, run.value_gap, *run.ledger]
print(hashlib.sha256(b"".join(np.ascontiguousarray(f).tobytes() for f in fields)).hexdigest())
"""


def in_a_fresh_process(agent):
    program = PROGRAM.format(agent=agent, steps=STEPS)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)
    return done.stdout.strip()


@pytest.mark.slow
def test_a_fresh_process_gives_the_same_bits():
    assert in_a_fresh_process("PSRL") == digest(run(PSRL()))


@pytest.mark.slow
def test_two_fresh_processes_give_the_same_bits():
    assert in_a_fresh_process("CDPO") == in_a_fresh_process("CDPO") == digest(run(CDPO()))


def test_steps_are_counted_exactly_where_the_period_does_not_divide_them():
    always_one = FiniteMDP(np.ones((1, 2, 1)), 1.0)
    counted = []
    result = simulate(always_one, Random(), seeds=2, steps=23, period=5, segment=2, progress=counted.append)
    assert result.reward.sum(1) == pytest.approx([23, 23])
    assert result.expected.sum(1) == pytest.approx([23, 23])
    np.testing.assert_array_equal(result.ends, [5, 10, 15, 20, 23])
    np.testing.assert_array_equal(result.average, [1, 1])
    assert sum(counted) == 2 * 23


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seeds": 0}, "seeds must be between 1 and 10000, not 0"),
        ({"seeds": -1}, "seeds must be between 1 and 10000, not -1"),
        ({"steps": 0}, "steps must be between 1 and 1000000000, not 0"),
        ({"steps": -5}, "steps must be between 1 and 1000000000, not -5"),
        ({"period": 0}, "period must be between 1 and 1000000, not 0"),
        ({"period": -1}, "period must be between 1 and 1000000, not -1"),
        ({"seed": -1}, "seed must be between 0 and 1000000000"),
        ({"seed": 2**31}, "seed must be between 0 and 1000000000"),
    ],
)
def test_numbers_that_make_no_run_are_the_users_mistake(settings, message):
    with pytest.raises(UserError, match=message):
        simulate(Chain(5), Random(), **{"steps": 10} | settings)


def test_an_end_leads_to_a_new_start():
    """From state 0 or 1 by lot to the end, which pays 1 or 2: the states seen between blocks are never the end."""
    transition = np.zeros((3, 1, 3))
    transition[:, 0, 2] = 1
    mdp = FiniteMDP(transition, np.array([[1.0], [2.0], [100.0]]), start=[0.25, 0.75, 0], terminal=[False, False, True])
    seen = []
    result = simulate(
        mdp, Random(), seeds=8, steps=400, period=1, segment=50, watch=lambda _, __, c: seen.append(np.asarray(c.state))
    )
    np.testing.assert_array_equal(np.unique(seen), [0, 1])
    assert set(np.unique(result.reward)) == {1, 2}
    # The share of twos has a standard deviation of sqrt(.1875 / 3200) = .008.
    assert np.mean(result.reward == 2) == pytest.approx(0.75, abs=0.03)
    np.testing.assert_allclose(result.average, 1.75, rtol=1e-4)


def test_watch_sees_every_chunk_between_segments():
    seen = []
    simulate(
        Chain(5),
        Random(),
        seeds=9,
        steps=60,
        segment=4,
        watch=lambda done, lanes, carry: seen.append((done, lanes[0], carry.state.shape)),
    )
    assert sorted(seen) == [(done, first, (8,)) for done in (0, 24, 48, 60) for first in (0, 8)]


def test_an_error_in_watch_ends_the_call():
    class Broken(Exception):
        pass

    def watch(done, lanes, carry):
        if done >= 24:
            raise Broken

    with pytest.raises(Broken):
        simulate(Chain(5), Random(), seeds=9, steps=60, segment=4, watch=watch)


def test_chunks_are_whole_and_aligned():
    if jax.default_backend() != "cpu":
        pytest.skip("an accelerator takes all seeds at once")
    chunks = list(simulation._chunks(np.arange(6, 18)))
    np.testing.assert_array_equal(np.concatenate(chunks), np.arange(24))
    assert {len(chunk) for chunk in chunks} == {simulation.LANES}


# Learning: the paper's claim, on the smallest chain.


@pytest.fixture(scope="module")
def normalised(chain_run):
    oracle = chain_run(Oracle())
    return lambda agent: regret(chain_run(agent), oracle).normalised


@pytest.mark.slow
def test_cdpo_learns_the_chain_with_less_regret_than_psrl(normalised):
    cdpo, psrl = normalised(CDPO()).mean(), normalised(PSRL()).mean()
    assert cdpo < 0.06
    assert cdpo < psrl < 0.15


@pytest.mark.slow
def test_a_pointwise_bound_explores_too_little(normalised):
    assert normalised(CDPO(constraint="pointwise")).mean() > 0.2


@pytest.mark.slow
def test_greedy_never_finds_the_end_of_the_chain(normalised, chain_run):
    assert (normalised(Greedy()) > 0.8).all()
    assert regret(chain_run(Greedy()), chain_run(Oracle())).stuck.all()


def test_the_oracle_earns_its_average(chain_run):
    oracle = chain_run(Oracle())
    assert oracle.expected.sum(1).mean() / 6250 == pytest.approx(0.1036, abs=0.003)
    np.testing.assert_allclose(oracle.value_gap, 0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "expected", "tolerance"),
    [
        (PSRL(), 0.134, 0.03),
        (CDPO(), 0.064, 0.03),
        (CDPO(constraint="none"), 0.061, 0.03),
        (CDPO(constraint="previous"), 0.053, 0.03),
        (BQL(), 0.266, 0.05),
        (UBE(), 0.836, 0.03),
        (MM(), 0.718, 0.03),
        (UCRL(), 1.082, 0.03),
        (QLearning(), 1.04, 0.03),
    ],
    ids=["psrl", "cdpo", "none", "previous", "bql", "ube", "mm", "ucrl", "q-learning"],
)
def test_regret_agrees_with_an_independent_implementation(agent, expected, tolerance):
    settings = {"seeds": 16, "steps": 10_000}
    found = regret(simulate(Chain(8), agent, **settings), simulate(Chain(8), Oracle(), **settings))
    assert found.normalised.mean() == pytest.approx(expected, abs=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("agent", [BQL(), UBE(), MM(), UCRL(), QLearning(), Greedy()], ids=lambda agent: agent.name)
@pytest.mark.parametrize("environment", [DeepSea(3), PriorMDP(3, actions=3)], ids=lambda env: env.name)
def test_every_agent_runs_everywhere_with_finite_numbers(agent, environment):
    result = simulate(environment, agent, seeds=3, steps=60)
    for field in fields(result):
        assert np.isfinite(field).all()
    assert (result.value_gap > -1e-4).all()
