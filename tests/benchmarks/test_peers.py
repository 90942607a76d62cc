from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from cdpo.tasks import find_task

PATH = Path(__file__).parents[2] / "benchmarks" / "peers.py"


@pytest.fixture(scope="module")
def peers(script):
    return script(PATH)


@pytest.fixture(scope="module")
def short():
    return find_task("Pendulum-v1", horizon=4)


def nothing(observation):
    return np.zeros(1, np.float32)


def test_an_evaluation_is_the_mean_of_ten_episodes_that_begin_alike_for_everyone(peers):
    task, begun = find_task("Pendulum-v1", horizon=1), []

    def act(observation):
        begun.append(observation)
        return nothing(observation)

    by_hand = []
    for number in range(10):
        environment = task.make()
        environment.reset(seed=peers.FIRST + number)
        by_hand.append(environment.step(np.zeros(1, np.float32))[1])
    assert peers.evaluated(task, act) == pytest.approx(np.mean(by_hand))
    assert peers.evaluated(task, nothing) == peers.evaluated(task, nothing)
    assert len(begun) == len(np.unique(begun, axis=0)) == 10


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "lived"), [(7, 8), (8, 8), (9, 12)])
def test_ours_ends_with_the_first_episode_that_reaches_the_budget(peers, short, steps, lived):
    act, reached = peers.ours("ppo", short, steps, 0)
    assert reached == lived
    assert abs(act(np.zeros(3))) <= 2


@pytest.mark.extra
@pytest.mark.filterwarnings("default")  # of the other libraries
@pytest.mark.parametrize("library", ["stable-baselines3", "sbx"])
@pytest.mark.parametrize("agent", ["sac", "ppo"])
def test_the_others_learn_and_act_within_bounds(peers, library, agent):
    pytest.importorskip("sbx")
    act, reached = peers.theirs(library, agent, find_task("Pendulum-v1"), 105, 0)
    assert reached == (105 if agent == "sac" else 2048)
    seen = np.array([1.0, 0.0, 8.0])
    assert act(seen).shape == (1,)
    assert abs(act(seen)) <= 2
    assert act(seen) == act(seen)


@pytest.mark.extra
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(find_spec("deprl") is None, reason="needs deprl")
def test_tonics_mpo_learns_and_acts_within_bounds(peers):
    act, reached = peers.trained("tonic", "mpo", find_task("Pendulum-v1"), 1050, 0)
    assert reached == 1050
    early, _ = peers.trained("tonic", "mpo", find_task("Pendulum-v1"), 999, 0)
    seen = np.array([1.0, 0.0, 8.0])
    assert act(seen).shape == (1,)
    assert abs(act(seen)) <= 2
    assert act(seen) != early(seen)  # which had not begun to learn


def test_an_agent_is_compared_with_libraries_that_have_it(peers, monkeypatch, capsys):
    monkeypatch.setattr(
        "sys.argv", ["peers.py", "mpo", "Pendulum-v1", "--steps", "9", "--libraries", "sbx", "--out", "x.csv"]
    )
    with pytest.raises(SystemExit) as ended:
        peers.main()
    assert ended.value.code == 2
    assert "mpo is compared with cdpo, tonic" in capsys.readouterr().err
