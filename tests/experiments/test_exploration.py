"""Figure 3 from real, tiny training runs: each once, on equal terms, and whatever happens in between."""

import dataclasses
import shlex
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from cdpo.cli import _run
from cdpo.experiments import FIGURES, exploration, reproduce, training
from cdpo.experiments.exploration import RULES, cells, rule_settings
from cdpo.experiments.training import TrainingCell, curves
from cdpo.progress import Progress
from cdpo.runs import RunFolder
from cdpo.training import loop, run
from cdpo.training.run import Journal

FIGURE = FIGURES["exploration"]


def tiny(rule):
    """Two seeds, the random episode and two more; the pole falls after a few steps."""
    return TrainingCell("inverted-pendulum", rule_settings("inverted-pendulum", rule, "smoke"), episodes=2, seeds=2)


TINY = [tiny("psrl"), tiny("greedy")]


@pytest.fixture(scope="module", autouse=True)
def two_rules():
    """The figure of two tiny runs, whose programs are compiled once for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "clear_caches", lambda: None)
        patch.setitem(FIGURES, "exploration", dataclasses.replace(FIGURE, cells=lambda scale: TINY))
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory, two_rules):
    """A figure that was never interrupted."""
    path = tmp_path_factory.mktemp("whole") / "run"
    reproduce("exploration", "smoke", path, "cdpo", Progress().task)
    return RunFolder.open(path)


@pytest.fixture
def make(tmp_path, capsys):
    """Makes the figure from the command line; exit code, output and errors."""

    def call(more=""):
        code = _run(shlex.split(f"reproduce exploration --scale smoke --out '{tmp_path / 'run'}' {more}"))
        return code, *capsys.readouterr()

    return call


def results(folder):
    """The records less the time that they took."""
    return [{key: value for key, value in record.items() if key != "wall_s"} for record in folder.summary["results"]]


@pytest.mark.slow
def test_the_record_of_a_cell_is_its_training_run(whole):
    for record, cell in zip(whole.summary["results"], TINY, strict=True):
        folder = RunFolder.open(whole.path / "cells" / cell.name)
        assert folder.path.name == record["folder"] and folder.config["kind"] == "train"
        assert (record["task"], record["agent"]) == ("inverted-pendulum", cell.settings.rule.name)
        assert record["seeds"] == [0, 1] and record["episodes"] == 2 and record["stopped"] == {}
        assert record["settings"] == folder.config["settings"]
        assert record["wall_s"] == folder.summary["wall_s"] > 0 and record["hardware"] == folder.summary["hardware"]
        for seed, curve in zip(record["seeds"], record["curves"], strict=True):
            lines = [line for line in folder.records() if line["seed"] == seed]
            assert curve["env_steps"] == [line["env_steps"] for line in lines] and len(lines) == 3
            assert curve["eval_return"] == [line["eval_return"] for line in lines]
            for name in ("return", "value_last", "value_q", "coverage90_new"):
                assert curve[name] == [line.get(name) for line in lines]
            assert None not in curve["value_q"][1:]
            assert "improvement_pi" not in curve  # there is one update
        assert record["final"] == pytest.approx(np.mean(folder.summary["eval_returns"], axis=1).tolist())
        own = {"psrl": "unsettled_sample", "greedy": "unsettled_reference"}[record["agent"]]
        moved = [[line[own] for line in folder.records() if line["seed"] == seed and own in line] for seed in (0, 1)]
        assert [entry["unsettled"] for entry in record["ledger"]] == [np.median(each) for each in moved]


def test_curves_tell_of_models_what_is_known_of_them():
    first = {"episode": 0, "env_steps": 5, "return": 1.0, "eval_return": None}
    second = first | {"episode": 1, "env_steps": 9, "improvement_pi": 0.5}
    without, with_ = (
        curves(SimpleNamespace(seeds=[3], lines={(3, 0): first, (3, 1): line}))[0]
        for line in (first | {"episode": 1}, second)
    )
    assert set(without) == {"episode", "env_steps", "return", "eval_return"}
    assert with_["improvement_pi"] == [None, 0.5] and "value_q" not in with_


@pytest.mark.slow
def test_the_tables_are_the_records(whole, rows):
    records, figures = whole.summary["results"], whole.figures
    finals = [final for record in records for final in record["final"]]
    assert [float(row["final"]) for row in rows(figures / "returns-by-seed.csv")] == pytest.approx(finals)
    at_end = [row for row in rows(figures / "returns-at-steps.csv") if row["budget"] == "1.0"]
    assert [(row["env_steps"], row["seeds"], row["reached"]) for row in at_end] == [("600", "2", "0")] * 2
    lasts = [np.mean([curve["eval_return"][-1] for curve in record["curves"]]) for record in records]
    assert [float(row["interquartile_mean"]) for row in at_end] == pytest.approx(lasts)
    evaluated = [x for record in records for curve in record["curves"] for x in curve["eval_return"] if x is not None]
    assert [float(row["return"]) for row in rows(figures / "evaluations.csv")] == pytest.approx(evaluated)
    wins = np.mean([np.sign(x - y) / 2 + 0.5 for x in finals[:2] for y in finals[2:]])
    found = {(row["agent"], row["over"]): float(row["probability"]) for row in rows(figures / "improvement.csv")}
    assert found == {("psrl", "greedy"): pytest.approx(wins), ("greedy", "psrl"): pytest.approx(1 - wins)}


@pytest.mark.slow
def test_a_finished_cell_is_not_run_again(whole, monkeypatch):
    before = results(whole)
    drawn = {path.name: path.read_bytes() for path in whole.figures.iterdir()}
    monkeypatch.setattr(training, "Trainer", None)  # a call would fail
    reproduce("exploration", "smoke", whole.path, "cdpo", Progress().task)
    assert results(whole) == before
    assert {path.name: path.read_bytes() for path in whole.figures.iterdir()} == drawn


@pytest.mark.slow
def test_interrupted_it_says_how_to_go_on_and_ends_as_if_it_had_not_been(tmp_path, make, whole, monkeypatch):
    write, episodes = Journal.write, []

    def interrupted(journal, lived):
        write(journal, lived)
        episodes.append((journal.trainer.settings.rule.name, journal.trainer.episode))
        if episodes[-1] == ("greedy", 2):
            raise KeyboardInterrupt

    monkeypatch.setattr(Journal, "write", interrupted)
    code, out, err = make()
    assert (code, out) == (130, "")
    assert f"go on with: cdpo reproduce exploration --scale smoke --out {tmp_path / 'run'}" in err
    assert [record["agent"] for record in RunFolder.open(tmp_path / "run").records()] == ["psrl"]
    assert episodes == [("psrl", 1), ("psrl", 2), ("psrl", 3), ("greedy", 1), ("greedy", 2)]
    episodes.clear()
    code, out, err = make()
    assert code == 0, err
    assert episodes == [("greedy", 3)]  # the interrupted cell went on, the finished one was left alone
    assert results(RunFolder.open(tmp_path / "run")) == results(whole)


@pytest.mark.slow
def test_made_in_parts_it_is_the_same(tmp_path, make, whole, rows):
    code, _, err = make("--agents greedy --tasks inverted-pendulum")
    assert code == 0, err
    assert [record["agent"] for record in RunFolder.open(tmp_path / "run").summary["results"]] == ["greedy"]
    assert {row["agent"] for row in rows(tmp_path / "run" / "figures" / "returns.csv")} == {"greedy"}
    code, _, err = make()
    assert code == 0, err
    assert results(RunFolder.open(tmp_path / "run")) == results(whole)


class Killed(BaseException):
    """Nothing that anyone answers to."""


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["between two commits", "before the record is kept"])
def test_killed_it_ends_as_if_it_had_not_been(tmp_path, make, whole, monkeypatch, moment):
    monkeypatch.setattr(run, "PATIENCE", 0.0)
    with monkeypatch.context() as patch:
        if moment == "between two commits":
            commit = Journal.commit

            def killed(journal):
                if journal.trainer.episode == 2:
                    raise Killed
                commit(journal)

            patch.setattr(Journal, "commit", killed)
        else:
            patch.setattr(TrainingCell, "_record", lambda *_: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            make()
    assert RunFolder.open(tmp_path / "run").records() == []
    code, _, err = make()
    assert code == 0, err
    assert results(RunFolder.open(tmp_path / "run")) == results(whole)


@pytest.mark.slow
def test_a_seed_that_is_stopped_is_reported_and_spoils_nothing(tmp_path, make, whole, rows, monkeypatch):
    begun = loop.training_life

    def spoilt(environment, task, seed, episode, noise, *, random):
        life = begun(environment, task, seed, episode, noise, random=random)
        if (seed, episode) == (1, 2):
            go = life.go
            monkeypatch.setattr(life, "go", lambda policy, steps: go(policy, steps) * np.nan)
        return life

    monkeypatch.setattr(loop, "training_life", spoilt)
    code, _, err = make()
    assert code == 3
    reason = "was stopped by the data of episode 2: not a finite number"
    assert [line for line in err.splitlines() if line.startswith("cdpo:")] == [
        f"cdpo: seed 1 of inverted-pendulum, PSRL {reason}",
        f"cdpo: seed 1 of inverted-pendulum, greedy {reason}",
    ]
    folder = RunFolder.open(tmp_path / "run")
    for found, good in zip(results(folder), results(whole), strict=True):
        assert list(found["stopped"]) == ["1"]
        assert found["curves"][0] == good["curves"][0] and found["ledger"][0] == good["ledger"][0]
        assert found["curves"][1] == {key: values[:2] for key, values in good["curves"][1].items()}
    assert [bool(row["stopped"]) for row in rows(folder.figures / "returns-by-seed.csv")] == [False, True] * 2


def test_cells_that_differ_in_anything_have_folders_of_their_own():
    cell = TINY[0]
    slower = cell.settings.changed(dyna={"horizon": 3})
    changes = [
        {},
        {"task": "pendulum-swingup-0.1"},
        {"settings": TINY[1].settings},
        {"settings": slower},
        {"episodes": 3},
        {"seeds": 3},
        {"seed": 1},
        {"label": "mine / ../yours"},
    ]
    changed = [dataclasses.replace(cell, **change) for change in changes]
    assert len({each.name for each in changed}) == len({repr(each.identity) for each in changed}) == len(changes)
    assert all("/" not in each.name and not each.name.startswith(".") for each in changed)


@pytest.mark.parametrize("scale", ["smoke", "quick", "paper"])
def test_rules_meet_on_equal_terms(scale):
    by_task = {}
    for cell in cells(scale):
        by_task.setdefault(cell.task, []).append(cell)
    for group in by_task.values():
        assert [cell.settings.rule.name for cell in group] == list(RULES)
        assert len({(cell.episodes, cell.seeds, cell.seed) for cell in group}) == 1
        updates = {"cdpo": 2}
        steps = [updates.get(c.settings.rule.name, 1) * c.settings.dyna.rounds * c.settings.dyna.updates for c in group]
        assert len(set(steps)) == 1
        assert len({cell.settings.rule.models for cell in group}) == 1
        for part in ("loop", "ensemble", "sac"):
            assert len({getattr(cell.settings, part) for cell in group}) == 1
        same = {dataclasses.replace(cell.settings.dyna, rounds=1) for cell in group}
        assert len(same) == 1


def test_the_paper_scale_is_the_papers():
    found = {(cell.task, cell.episodes, cell.seeds, cell.seed) for cell in cells("paper")}
    pendulums = {("inverted-pendulum", 30, 6, 0), ("cartpole-swingup", 40, 6, 0)}
    assert found == pendulums | {("pusher", 100, 6, 0), ("half-cheetah", 100, 6, 0)}
    one = dataclasses.replace(cells("paper")[0].settings.rule, update="referential")
    settings = cells("paper")[0].settings.changed(rule=one)
    assert exploration.on_equal_terms(settings).dyna.rounds == 2 * settings.dyna.rounds  # it makes one update
    settings = settings.changed(solver="bptt")
    assert exploration.on_equal_terms(settings).bptt.updates == 2 * settings.bptt.updates
    settings = settings.changed(solver="mpc")
    assert exploration.on_equal_terms(settings).mpc.rounds == 2 * settings.mpc.rounds


@pytest.mark.slow
def test_all_four_rules_at_smoke(tmp_path, make, monkeypatch, rows):
    monkeypatch.setitem(FIGURES, "exploration", FIGURE)
    code, _, err = make()
    assert code == 0, err
    found = results(RunFolder.open(tmp_path / "run"))
    assert [(record["task"], record["agent"]) for record in found] == [("inverted-pendulum", rule) for rule in RULES]
    for record in found:
        assert len(record["seeds"]) == 2 and record["stopped"] == {}
        assert all(entry["unsettled"] > 0 for entry in record["ledger"])
        assert all((entry["kl_of_bound"] is not None) == (record["agent"] == "cdpo") for entry in record["ledger"])
    assert len(rows(tmp_path / "run" / "figures" / "improvement.csv")) == 12
