"""The comparison with other agents: who takes part, for how long, and what is drawn of it."""

import numpy as np
import pytest

from cdpo.agents import RULES
from cdpo.experiments import baselines, reproduce
from cdpo.experiments.baselines import LONG, MODEL_BASED, MODEL_FREE, cells
from cdpo.progress import Progress
from cdpo.tasks import find_task
from cdpo.training.presets import preset


@pytest.mark.parametrize("task", baselines.BUDGETS["paper"])
def test_every_baseline_takes_part_with_its_preset_and_as_many_episodes(task):
    found = [cell for cell in cells("paper") if cell.task == task and not cell.label]
    rules = {"greedy", "psrl", "hucrl"}  # of the other figure
    assert {cell.settings.rule.name for cell in found} == set(RULES) - rules
    assert len({(cell.episodes, cell.seeds, cell.seed) for cell in found}) == 1
    for cell in found:
        assert cell.settings == preset("default", find_task(task), cell.settings.rule.name)


def test_agents_without_a_model_also_have_longer_runs_with_few_evaluations():
    longer = [cell for cell in cells("paper") if cell.label]
    assert {(cell.task, cell.settings.rule.name) for cell in longer} == {
        (task, agent) for task in baselines.BUDGETS["paper"] for agent in MODEL_FREE
    }
    for cell in longer:
        assert cell.episodes * find_task(cell.task).horizon == LONG
        assert 30 <= cell.episodes / cell.settings.loop.evaluate <= 45
        assert cell.label.endswith(", longer")


def test_at_smaller_scales_all_are_run_that_learn_nothing_or_a_few_that_do():
    assert [cell.settings.rule.name for cell in cells("quick")] == ["cdpo", "mbpo", "sac"]
    assert [cell.settings.rule.name for cell in cells("smoke")] == [*MODEL_BASED, *MODEL_FREE]
    assert all(cell.settings.hidden == (8,) for cell in cells("smoke"))


@pytest.mark.slow
def test_every_agent_goes_through_the_figure(tmp_path):
    paths, records = reproduce("baselines", "smoke", tmp_path / "run", "cdpo reproduce baselines", Progress().task)
    assert [record["agent"] for record in records] == [*MODEL_BASED, *MODEL_FREE]
    for record in records:
        assert record["stopped"] == {} and all(np.isfinite(record["final"]))
    assert {"returns.svg", "ledger.svg", "calibration.svg", "improvement.csv"} <= {path.name for path in paths}


def test_at_equal_steps_whoever_ended_before_is_told_by_its_longer_run(tmp_path, curve, record, rows):
    """The budget is 50 steps, five episodes of ten."""
    ended, lived = (curve([3, 6, last], [1.0, 2.0]) for last in (9, 50))
    longer = record("sac", [curve([10, 20, 30, 45, 400], [3.0, 5.0, 4.0, 100.0])] * 2, label="SAC, longer")
    told = [record("sac", [ended] * 2), longer, record("cdpo", [ended] * 2), record("ppo", [lived] * 2)]
    baselines.draw([*told, {**longer, "agent": "ppo", "label": "PPO, longer"}], tmp_path)
    ends = {row["agent"]: row for row in rows(tmp_path / "returns-by-seed.csv")}
    assert {agent: (row["env_steps"], row["final"]) for agent, row in ends.items()} == {
        "sac": ("45", "4.0"),  # the mean of three evaluations; the fourth came later
        "cdpo": ("9", "1.5"),
        "ppo": ("50", "1.5"),
    }
    lost = {row["agent"]: (row["lost_share"], row["lost_return"]) for row in rows(tmp_path / "ledger.csv")}
    assert lost["sac"] == ("0.5", "1.0")
    assert {row["env_steps"] for row in rows(tmp_path / "long-evaluations.csv")} == {"20", "30", "45", "400"}


def test_all_are_told_by_the_evaluations_of_whoever_had_fewest(tmp_path, curve, record, rows):
    """Means of the last three evaluations are then of the same episodes."""
    steps = [10 * number for number in range(1, 11)]
    often = record("sac", [curve(steps, [float(number) for number in range(1, 10)])] * 2, episodes=9)
    seldom = record("cdpo", [curve(steps, [None, None, 2.0, None, None, 4.0, None, None, 9.0])] * 2, episodes=9)
    baselines.draw([often, seldom], tmp_path)
    ends = {row["agent"]: (row["evaluations"], row["final"]) for row in rows(tmp_path / "returns-by-seed.csv")}
    assert ends == {"sac": ("3", "6.0"), "cdpo": ("3", "5.0")}
    lost = {row["agent"]: row["lost_share"] for row in rows(tmp_path / "ledger.csv")}
    assert lost == {"sac": "0.0", "cdpo": "0.5"}


def test_longer_runs_are_drawn_by_themselves(tmp_path, curve, record, rows):
    short = [record(agent, [curve([10, 20, 30], [1.0, 2.0])] * 2) for agent in ("cdpo", "sac")]
    longer = record("sac", [curve([10, 500, 1000], [3.0, 4.0])] * 2, label="SAC, longer")
    drawn = {path.name for path in baselines.draw([*short, longer], tmp_path)}
    assert {"returns.svg", "improvement.csv", "long-returns.svg", "long-evaluations.csv"} <= drawn
    assert {row["agent"] for row in rows(tmp_path / "returns.csv")} == {"cdpo", "sac"}
    assert max(int(row["env_steps"]) for row in rows(tmp_path / "evaluations.csv")) == 30
    assert {row["label"] for row in rows(tmp_path / "long-returns.csv")} == {"SAC, longer"}
    alone = {path.name for path in baselines.draw([longer], tmp_path / "alone")}
    assert "long-returns.svg" in alone and "returns.svg" not in alone
