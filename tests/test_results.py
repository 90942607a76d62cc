from pathlib import Path

import pytest

import cdpo

POLICIES = Path(__file__).parent.parent / "results" / "policies"
LEAST = {"half-cheetah": 9_000, "HalfCheetah-v5": 9_000, "pusher": -60}


def test_every_kept_policy_is_known():
    assert {path.name for path in POLICIES.iterdir()} == set(LEAST)


@pytest.mark.parametrize("name", LEAST)
def test_a_kept_policy_earns_what_is_told_of_it(name):
    agent = cdpo.load(POLICIES / name)
    assert agent.task.name == name
    assert agent.evaluate(episodes=1).mean() > LEAST[name]
