"""The ablation: what varies, on equal terms, and what is drawn of it."""

import dataclasses

import numpy as np
import pytest

from cdpo.experiments import FIGURES, ablation, reproduce
from cdpo.experiments.ablation import VARIANTS, WHOLE, cells
from cdpo.experiments.exploration import rule_settings
from cdpo.experiments.training import TrainingCell
from cdpo.progress import Progress
from cdpo.runs import RunFolder
from cdpo.tasks import find_task
from cdpo.training.loop import program_of
from cdpo.training.presets import preset


def of(task):
    return {cell.label: cell.settings for cell in cells("paper") if cell.task == task}


def test_what_has_no_bound_is_drawn_as_what_has_one_but_dashed():
    look = ablation._looks(ablation.FIGURES["steps"])
    for steps in (5, 20, 80):
        bound, none = look[f"{steps} steps"], look[f"{steps} steps, no bound"]
        assert bound.colour == none.colour and not bound.dashes and none.dashes
    assert len({each.colour for each in look.values()}) == 3


@pytest.mark.parametrize("task", ablation.BUDGETS["paper"])
def test_all_variants_of_the_paper_and_more_are_there_but_for_those_that_are_the_default(task):
    found = of(task)
    assert found[WHOLE] == preset("default", find_task(task))
    assert list(found) == [label for label in VARIANTS if label != "bound 0.1"]
    assert {label for labels in ablation.FIGURES.values() for label in labels} == set(VARIANTS)
    bounds = {(each.rule.schedule, each.rule.kl) for label, each in found.items() if "bound" in label or label == WHOLE}
    for kl in (0.01, 0.03, 0.1, 0.3):
        assert {("constant", kl), ("sqrt", kl)} <= bounds
    for steps in (5, 20, 80):
        with_, without = found[f"{steps} steps"], found[f"{steps} steps, no bound"]
        assert with_.dyna.updates == without.dyna.updates == steps
        assert (with_.rule.schedule, without.rule.schedule) == ("constant", "none")
    assert [(each.ensemble.heads, each.rule.models) for each in (found["3 heads"], found["4 heads"])] == [
        (3, 3),
        (4, 4),
    ]
    assert [found[label].solver for label in ("POPLIN-P", "BPTT")] == ["mpc", "bptt"]
    assert found["POPLIN-P"].mpc.moves == "parameters"


def test_one_update_alone_has_the_gradient_steps_of_both():
    found = of("inverted-pendulum")
    for label in ("referential only", "conservative only"):
        assert found[label].dyna.rounds == 2 * found[WHOLE].dyna.rounds
        assert found[label].rule.update == label.split()[0]


def test_bounds_ride_the_seed_axis_of_one_program():
    found = of("half-cheetah")
    assert len({program_of(found[label]) for label in (WHOLE, "bound 0.01", "bound 0.03", "bound 0.3")}) == 1


def test_every_part_has_a_figure_and_every_variant_is_held_against_the_whole(tmp_path, curve, record, rows):
    some = [curve([10, 20, 30], [value, value + 1]) for value in (1.0, 3.0)]
    worse = [curve([10, 20, 30], [value, value - 1]) for value in (0.0, 1.0)]
    labels = (WHOLE, "referential only", "bound 0.3", "BPTT")
    records = [record("cdpo", some if label == WHOLE else worse, label=label) for label in labels]
    drawn = {path.name for path in ablation.draw(records, tmp_path)}
    shown = {"updates", "bound", "bound-decayed", "heads", "solver"}  # there are no steps to show
    assert {name for name in drawn if name.endswith(".svg")} == {f"{name}.svg" for name in shown}
    assert {row["label"] for row in rows(tmp_path / "updates.csv")} == {WHOLE, "referential only"}
    picture = (tmp_path / "bound.svg").read_text()
    assert "bound 0.3" in picture and "no bound" not in picture
    told = rows(tmp_path / "improvement.csv")
    assert {(row["agent"], row["over"], row["probability"]) for row in told} == {
        (WHOLE, label, "1.0") for label in labels[1:]
    }
    assert len(rows(tmp_path / "returns-by-seed.csv")) == len(rows(tmp_path / "ledger.csv")) == 8


@pytest.mark.slow
def test_some_variants_alone_are_run_by_name(tmp_path, monkeypatch):
    start = rule_settings("inverted-pendulum", "cdpo", "smoke")
    changed = start.changed(rule={"kl": 0.3})
    few = [
        TrainingCell("inverted-pendulum", settings, 1, 1, label=label)
        for label, settings in ((WHOLE, start), ("bound 0.3", changed))
    ]
    monkeypatch.setitem(FIGURES, "ablation", dataclasses.replace(FIGURES["ablation"], cells=lambda scale: few))
    reproduce("ablation", "smoke", tmp_path / "run", "cdpo reproduce", Progress().task, variants=["bound 0.3"])
    assert [each["label"] for each in RunFolder.open(tmp_path / "run").summary["results"]] == ["bound 0.3"]


@pytest.mark.slow
def test_every_solver_goes_through_the_figure(tmp_path):
    solvers = ["POPLIN-P", "BPTT"]
    told = reproduce("ablation", "smoke", tmp_path / "run", "cdpo reproduce", Progress().task, variants=solvers)
    assert [record["label"] for record in told[1]] == solvers
    assert all(record["stopped"] == {} and all(np.isfinite(record["final"])) for record in told[1])
    assert (tmp_path / "run" / "figures" / "solver.svg").exists()
