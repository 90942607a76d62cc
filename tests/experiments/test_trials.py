"""Tuning and settings: equal terms, one change at a time, and variants of one program side by side."""

import dataclasses

import jax
import numpy as np
import pytest

from cdpo.experiments import FIGURES, exploration, reproduce, trials
from cdpo.experiments.exploration import RULES, rule_settings
from cdpo.experiments.training import TrainingCell
from cdpo.experiments.trials import draw_trials, settings, trial_rows, trials_of, tuning
from cdpo.progress import Progress
from cdpo.runs import RunFolder
from cdpo.training import run
from cdpo.training.loop import program_of
from cdpo.training.run import Journal

SCALES = ("smoke", "quick", "paper")


@pytest.mark.parametrize("scale", SCALES)
def test_every_rule_has_as_many_trials_and_other_seeds_than_are_reported(scale):
    cells = tuning(scale)
    tried = {seed for cell in cells for seed in range(cell.seed, cell.seed + cell.seeds)}
    reported = {seed for cell in exploration.cells("paper") for seed in range(cell.seed, cell.seed + cell.seeds)}
    assert not tried & reported
    for task in {cell.task for cell in cells}:
        here = [cell for cell in cells if cell.task == task]
        assert len({(cell.episodes, cell.seeds, cell.seed) for cell in here}) == 1
        for rule in RULES:
            own = [cell for cell in here if cell.settings.rule.name == rule]
            assert len(own) == 3
            assert len({program_of(cell.settings) for cell in own}) == 1  # they run side by side
            usual = rule_settings(task, rule, scale)
            assert usual in [cell.settings for cell in own]  # what is the default was tried


@pytest.mark.parametrize("scale", SCALES)
def test_every_variant_differs_from_the_default_in_one_thing(scale):
    by_task = {}
    for cell in settings(scale):
        by_task.setdefault(cell.task, []).append(cell)
    for default, *others in by_task.values():
        assert default.label == "default"
        assert len({cell.label for cell in others}) == len(others) > 2
        for cell in others:
            assert cell.settings != default.settings
            changed = [
                (part.name, field.name)
                for part in dataclasses.fields(cell.settings)
                if dataclasses.is_dataclass(mine := getattr(cell.settings, part.name))
                for field in dataclasses.fields(mine)
                if getattr(mine, field.name) != getattr(getattr(default.settings, part.name), field.name)
            ]
            starts = {("dyna", name) for name in ("initial", "visited", "broad")}
            heads = {("ensemble", "heads"), ("rule", "models")}  # as many models as heads
            assert len(changed) == 1 or set(changed) <= starts or set(changed) == heads


def record(label, final, **changes):
    entry = {"lost_share": 0.25, "kl_of_bound": None}
    told = {"task": "pusher", "agent": "cdpo", "label": label, "episodes": 4, "wall_s": 2.0, "lanes": 6}
    told |= {
        "seeds": list(range(len(final))),
        "curves": [{"env_steps": [150, 300], "eval_return": [None, value]} for value in final],
    }
    return {**told, "final": final, "ledger": [entry, {**entry, "lost_share": None}], **changes}


def test_what_learns_sooner_has_the_higher_mean():
    curves = [{"env_steps": [1, 2, 3], "eval_return": told} for told in ([0.0, 6.0, 6.0], [0.0, None, 6.0], [None] * 3)]
    assert trials.means({"curves": curves}) == [4.0, 3.0, None]


def test_the_table_of_trials_by_hand(tmp_path, rows):
    records = [record("kl 0.1", [1.0, 2.0, 6.0]), record("kl 0.3", [None, None]), record("far", [3.0], task="reacher")]
    first, second, third = trial_rows(records)
    assert (first["interquartile_mean"], first["lowest"], first["highest"], first["seeds"]) == (3.0, 1.0, 6.0, 3)
    assert (first["mean_of_evaluations"], second["mean_of_evaluations"]) == (3.0, None)
    assert first["lost_share"] == 0.25 and first["kl_of_bound"] is None
    assert (second["interquartile_mean"], second["lowest"], second["seeds"]) == (None, None, 0)
    assert (third["task"], third["variant"], third["lanes"]) == ("reacher", "far", 6)
    paths = draw_trials(records, tmp_path)
    assert {path.name for path in paths} == {"trials.png", "trials.svg", "trials.csv", "evaluations.csv"}
    evaluated = [
        (row["label"], row["seed"], row["env_steps"], row["return"]) for row in rows(tmp_path / "evaluations.csv")
    ]
    assert evaluated[1:4] == [("kl 0.1", "1", "300", "2.0"), ("kl 0.1", "2", "300", "6.0"), ("far", "0", "300", "3.0")]
    assert [row["variant"] for row in rows(tmp_path / "trials.csv")] == ["kl 0.1", "kl 0.3", "far"]
    assert "kl 0.3" in (tmp_path / "trials.svg").read_text()


# --- real, tiny training runs


def tiny(deviation):
    start = rule_settings("inverted-pendulum", "greedy", "smoke")
    return TrainingCell(
        "inverted-pendulum", start.changed(sac={"deviation": deviation}), 2, 2, seed=7, label=f"deviation {deviation}"
    )


@pytest.fixture(scope="module", autouse=True)
def two_variants():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "clear_caches", lambda: None)
        cells = [tiny(0.2), tiny(0.6)]
        patch.setitem(FIGURES, "tuning", dataclasses.replace(FIGURES["tuning"], cells=lambda scale: cells))
        yield


def results(folder):
    return [{key: value for key, value in record.items() if key != "wall_s"} for record in folder.summary["results"]]


def make(path):
    reproduce("tuning", "smoke", path, "cdpo reproduce tuning", Progress().task)
    return RunFolder.open(path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, two_variants):
    return make(tmp_path_factory.mktemp("whole") / "run")


@pytest.mark.slow
def test_variants_of_one_program_run_side_by_side_and_each_as_if_it_were_alone(whole, tmp_path, monkeypatch):
    found = results(whole)
    assert [each["lanes"] for each in found] == [4, 4]
    assert found[0]["curves"] != found[1]["curves"]
    monkeypatch.setitem(FIGURES, "tuning", dataclasses.replace(FIGURES["tuning"], cells=lambda scale: [tiny(0.6)]))
    (alone,) = results(make(tmp_path / "alone"))
    assert alone == {**found[1], "lanes": 2}


class Killed(BaseException):
    """Nothing that anyone answers to."""


@pytest.mark.slow
def test_variants_that_were_left_at_different_episodes_end_as_if_they_had_not_been(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "PATIENCE", 0.0)
    with monkeypatch.context() as patch:
        commit = Journal.commit

        def killed(journal):
            commit(journal)
            if journal.trainer.episode == 2:
                raise Killed  # the first has kept its episode 1, the second has not

        patch.setattr(Journal, "commit", killed)
        with pytest.raises(Killed):
            make(tmp_path / "run")
    write, order = Journal.write, []

    def seen(journal, lived):
        order.append((journal.trainer.settings.sac.deviation, journal.trainer.episode))
        write(journal, lived)

    monkeypatch.setattr(Journal, "write", seen)
    assert results(make(tmp_path / "run")) == results(whole)
    assert order == [(0.6, 2), (0.2, 3), (0.6, 3)]


@pytest.mark.slow
def test_a_cell_of_a_reproduction_cannot_be_made_longer_behind_its_back(whole, capsys):
    from cdpo.cli import _run

    cell = next((whole.path / "cells").iterdir())
    before = (cell / "config.json").read_bytes()
    for more in (["--episodes", "3"], []):
        assert _run(["resume", str(cell), *more]) == 2
        assert "belongs to 'cdpo reproduce tuning'" in capsys.readouterr().err
    assert (cell / "config.json").read_bytes() == before


def test_the_trials_are_named_by_what_they_change():
    assert list(trials_of("hucrl", "pendulum-swingup-0.1")) == ["beta 0.5", "beta 1", "beta 2"]
    assert trials_of("hucrl", "half-cheetah")["beta 0.3"] == {"rule": {"beta": 0.3}}
    cell = trials.tuning("smoke")[0]
    assert cell.label == "CDPO, kl 0.03" and cell.settings.rule.kl == 0.03
    assert np.all([cell.seed == trials.FIRST_SEED for cell in trials.settings("smoke")])
