"""Planning at decision time, in Python and by `cdpo evaluate --plan`."""

import json

import numpy as np
import pytest

import cdpo
from cdpo import api
from cdpo.agents import deciding
from cdpo.cli import _run
from cdpo.errors import UserError

PLANS = {"candidates": 16, "elites": 2, "iterations": 2, "horizon": 3}
HANGING = np.array([np.pi, 0.0])


@pytest.fixture(scope="module")
def agent(tiny):
    return cdpo.CDPO("pendulum-swingup", seeds=2, horizon=12, **tiny).learn(episodes=1)


@pytest.fixture(scope="module")
def planner(agent):
    return agent.planner(**PLANS)


def acts(planner, episode, count=4):
    planner.begin(episode)
    return [float(planner.act(HANGING)[0]) for _ in range(count)]


@pytest.mark.slow
def test_it_acts_within_bounds_and_equal_episodes_are_acted_equally(planner):
    actions = acts(planner, 0)
    assert np.all(np.abs(actions) <= 1) and planner.act(HANGING).dtype == np.float32
    assert acts(planner, 0) == actions
    assert acts(planner, 1) != actions
    with pytest.raises(UserError, match="observations of 2 numbers"):
        planner.act(np.zeros(3))


@pytest.mark.slow
def test_a_search_begins_at_what_is_left_of_the_last_plan(planner):
    planner.begin(0)
    nothing = planner._left
    planner.act(HANGING)
    assert not np.any(np.asarray(nothing)) and np.any(np.asarray(planner._left))
    planner.act(HANGING)
    going_on = np.asarray(planner._left)
    planner.begin(0)
    assert not np.any(np.asarray(planner._left))
    planner.act(HANGING)
    planner._left = nothing  # what was planned is forgotten, and nothing else is changed
    planner.act(HANGING)
    assert np.any(np.asarray(planner._left) != going_on)


@pytest.mark.slow
def test_another_planner_of_the_same_seed_does_the_same_and_that_of_another_does_not(agent, planner):
    same, other = (agent[index].planner(**PLANS) for index in (agent.best._index, 1 - agent.best._index))
    assert acts(same, 0) == acts(planner, 0) != acts(other, 0)


@pytest.mark.slow
def test_every_action_is_timed_but_not_the_compilation(agent):
    planner = agent[0].planner(**PLANS)
    assert planner.seconds == []
    returns = agent[0].evaluate(2, planner=planner)
    assert len(returns) == 2 and len(planner.seconds) == 2 * 12 and min(planner.seconds) > 0


def test_settings_of_plans_are_checked(agent):
    with pytest.raises(UserError, match="elites must be at most the 4 candidates"):
        agent.planner(candidates=4)
    with pytest.raises(UserError, match="did you mean 'candidates'"):
        agent.planner(candidate=4)


@pytest.mark.slow
def test_plans_have_the_settings_of_an_agent_that_learned_by_plans(tiny, tiny_mpc, monkeypatch):
    same = {part: tiny[part] for part in ("loop", "ensemble")}
    agent = cdpo.DPI("pendulum-swingup", horizon=12, models=2, mpc={**tiny_mpc, "horizon": 7}, **same).learn(episodes=1)
    told = []
    monkeypatch.setattr(api, "Planner", lambda *arguments, **_: told.append(arguments[3]))
    agent.planner()
    assert told[0].horizon == 7


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bptt", "mpc", "HUCRL", "pooled", "ppo"])
def test_whichever_rule_solver_and_learner_it_learned_with(tiny, tiny_bptt, tiny_mpc, tiny_learners, name):
    same = {part: tiny[part] for part in ("models", "loop", "ensemble")}
    dyna = {part: tiny[part] for part in ("dyna", "sac")}
    told = {
        "bptt": {"solver": "bptt", "bptt": tiny_bptt},
        "mpc": {"solver": "mpc", "mpc": tiny_mpc},
        "HUCRL": dyna,
        "pooled": {**dyna, "sac": {"hidden": (8,), "critic": "pooled"}},
        "ppo": {"learner": "ppo", **tiny_learners["ppo"]},
    }[name]
    kind = cdpo.HUCRL if name == "HUCRL" else cdpo.CDPO
    agent = kind("pendulum-swingup", horizon=12, **same, **told).learn(episodes=1)
    assert np.isfinite(agent[0].evaluate(1, planner=agent.planner(**PLANS))).all()


@pytest.fixture(scope="module")
def folders(agent, tmp_path_factory):
    """A whole run, its policies alone, and one of an agent without a model."""
    home = tmp_path_factory.mktemp("runs")
    agent.save(home / "whole")
    agent.save(home / "policies", policy_only=True)
    cdpo.SAC("pendulum-swingup", horizon=12, sac={"hidden": (8,)}, batch=8).learn(episodes=1).save(home / "sac")
    return home


@pytest.mark.slow
def test_a_run_is_evaluated_by_planning_with_its_latency(folders, capsys):
    assert _run(["evaluate", str(folders / "whole"), "--plan", "--episodes", "2", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [(each["seed"], len(each["returns"])) for each in answer["seeds"]] == [(0, 2), (1, 2)]
    assert all(each["latency_ms"] > 0 for each in answer["seeds"])
    assert _run(["evaluate", str(folders / "whole"), "--plan", "--episodes", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and all("ms a step (99th percentile" in line for line in lines)
    means = [f"seed {each['seed']}: {each['mean']:.1f} (" for each in answer["seeds"]]
    assert [line.startswith(start) for line, start in zip(lines, means, strict=True)] == [True, True]
    assert _run(["evaluate", str(folders / "whole"), "--episodes", "1", "--json"]) == 0
    assert "latency_ms" not in json.loads(capsys.readouterr().out)["seeds"][0]


@pytest.mark.slow
def test_the_latency_is_the_mean_and_the_99th_percentile_of_all_steps(folders, capsys, monkeypatch):
    calls = iter(range(10**6))

    def clock():  # the first action takes one millisecond, the second two, and so on
        action, ends = divmod(next(calls), 2)
        return 1.0 * action + ends * 1e-3 * (action + 1)

    monkeypatch.setattr(deciding.time, "perf_counter", clock)
    assert _run(["evaluate", str(folders / "whole"), "--plan", "--episodes", "2", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["seeds"]
    # 24 steps of each seed, after one that compiles.
    assert (first["latency_ms"], first["latency_p99_ms"]) == pytest.approx((13.5, 24.77))
    assert (second["latency_ms"], second["latency_p99_ms"]) == pytest.approx((38.5, 49.77))


@pytest.mark.slow
def test_a_plan_that_is_no_number_is_not_acted_on_and_not_remembered(agent, monkeypatch):
    planner = agent[0].planner(**PLANS)
    good = acts(planner, 0)
    decide = planner._decide
    nothing = np.full(1, np.nan, np.float32)
    monkeypatch.setattr(planner, "_decide", lambda *told: (nothing, decide(*told)[1] * np.nan))
    planner.begin(0)
    with pytest.raises(UserError, match="no plan of pendulum-swingup is a finite number here"):
        planner.act(HANGING)
    assert np.isnan(agent[0].evaluate(2, planner=planner)).all()
    monkeypatch.undo()
    planner._step = 0  # as at first, without a word that another episode begins
    planner._episode = 0
    assert [float(planner.act(HANGING)[0]) for _ in range(4)] == good


@pytest.mark.slow
def test_returns_of_plans_that_are_no_numbers_are_null_in_strict_json(folders, capsys, monkeypatch):
    call = deciding.Planner.__call__

    def broken(planner, observation, noise=None):
        action = call(planner, observation, noise)
        return action * np.nan if planner.seconds and planner._episode == 1 else action

    monkeypatch.setattr(deciding.Planner, "__call__", broken)
    assert _run(["evaluate", str(folders / "whole"), "--plan", "--episodes", "2", "--json"]) == 3
    told = capsys.readouterr()
    answer = json.loads(told.out, parse_constant=lambda word: pytest.fail(word))
    for each in answer["seeds"]:
        first, second = each["returns"]
        assert isinstance(first, float) and second is None and each["mean"] is None and each["latency_ms"] > 0
    assert told.err.splitlines() == [f"cdpo: seed {seed}: not every return is a finite number" for seed in (0, 1)]


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "word"), [("policies", "without a model"), ("sac", "sac learns without a model")])
def test_without_a_model_there_is_nothing_to_plan_on(folders, capsys, folder, word):
    assert _run(["evaluate", str(folders / folder), "--plan"]) == 2
    told = capsys.readouterr()
    assert told.out == "" and word in told.err and told.err.count("\n") == 1
