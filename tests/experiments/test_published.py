"""HalfCheetah-v5 next to what others published: who is run, and what is drawn and told of both."""

import numpy as np
import pytest

from cdpo.experiments import published, reproduce
from cdpo.experiments.published import AGENTS, PUBLISHED, TASK, cells
from cdpo.progress import Progress
from cdpo.tasks import find_task
from cdpo.training.presets import preset


def test_agents_have_their_presets_and_go_as_far_as_what_was_published():
    found = cells("paper")
    assert [cell.settings for cell in found] == [preset("default", find_task(TASK), agent) for agent in AGENTS]
    furthest = max(report.steps for reports in PUBLISHED.values() for report in reports)
    assert {(cell.task, cell.seeds) for cell in found} == {(TASK, 6)}
    assert all(cell.episodes * find_task(TASK).horizon >= furthest for cell in found)
    assert all(cell.settings.hidden == (8,) for cell in cells("smoke"))


def test_ours_are_told_at_the_evaluations_nearest_to_the_steps_of_others(tmp_path, curve, record, rows):
    steps = [1000, 26000, 51000, 76000, 101000]
    whole = record("cdpo", [curve(steps, [1.0, 2.0, 3.0, 4.0]), curve(steps, [3.0, 6.0, 7.0, 8.0])], task=TASK)
    stopped = record("sac", [curve(steps[:3], [5.0, 6.0])] * 2, task=TASK)
    paths = published.draw([whole, stopped], tmp_path)
    assert {"published.svg", "published.png", "published.csv", "evaluations.csv"} <= {path.name for path in paths}
    told = rows(tmp_path / "published.csv")
    ours = [row for row in told if row["source"] == "measured"]
    assert [(row["agent"], int(row["env_steps"]), float(row["mean"])) for row in ours] == [
        ("CDPO", 51000, 4.0),
        ("CDPO", 101000, 6.0),
        ("SAC", 51000, 6.0),
    ]
    assert float(ours[0]["deviation"]) == pytest.approx(8**0.5)
    theirs = {(row["agent"], int(row["env_steps"])): float(row["mean"]) for row in told if row["source"] == "published"}
    assert theirs == {(name, report.steps): report.mean for name, reports in PUBLISHED.items() for report in reports}
    picture = (tmp_path / "published.svg").read_text()
    assert all(f">{name}<" in picture for name in PUBLISHED)


def test_without_any_evaluation_tables_are_all(tmp_path, curve, record):
    paths = published.draw([record("cdpo", [curve([1000], [])], task=TASK)], tmp_path)
    assert {path.name for path in paths} == {"returns-by-seed.csv", "evaluations.csv"}


@pytest.mark.slow
def test_at_the_smallest_scale_every_agent_is_trained_on_the_real_task(tmp_path):
    paths, told = reproduce("published", "smoke", tmp_path / "made", "cdpo reproduce published", Progress().task)
    assert {"published.svg", "evaluations.csv"} <= {path.name for path in paths}
    assert [record["agent"] for record in told] == list(AGENTS)
    assert all(np.isfinite(record["final"]).all() for record in told)
