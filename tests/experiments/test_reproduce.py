"""Every figure is made from its records, and no cell is run twice."""

import contextlib
import dataclasses
import io
import json
import shlex
import xml.etree.ElementTree as ET

import jax
import numpy as np
import pytest

from cdpo.cells import complete
from cdpo.cli import _run
from cdpo.experiments import FIGURES
from cdpo.experiments.posterior import DRAWS, PosteriorCell
from cdpo.runs import RunFolder
from cdpo.tabular import PSRL, Chain, Oracle, Random, study
from cdpo.tabular.planning import Known, Model, policy_iteration, uniform_policy
from cdpo.tabular.study import Cell

TRAINED = ("exploration", "baselines", "published", "ablation", "tuning", "settings")  # which have tests of their own
SIMULATED = [name for name in FIGURES if name not in TRAINED]
POSTERIOR = ["posterior", "posterior-evolution"]
CURVES = ["regret", "cumulative-regret"]
DOTS = {
    "readings": "normalised_regret",
    "sampled-models": "normalised_regret",
    "priors": "normalised_regret",
    "elsewhere": "expected_regret",
    "bayes-regret": "value_regret",
}


def call(line):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = _run(shlex.split(line))
    return code, out.getvalue(), err.getvalue()


def make(name, folder, read):
    """Make a figure at the smallest scale; its records, and the rows behind each drawing."""
    code, out, err = call(f"reproduce {name} --scale smoke --out '{folder}'")
    assert code == 0, err
    paths = sorted((folder / "figures").iterdir())
    assert sorted(out.splitlines()) == [str(path) for path in paths]
    records = RunFolder.open(folder).summary["results"]
    seeds = folder / "figures" / "seeds.csv"
    assert (seeds in paths) == any("regret" in record for record in records)
    if seeds in paths:
        paths.remove(seeds)
        found = [float(row["value_regret"]) for row in read(seeds)]
        assert found == [value for record in records for value in record["value_regret"]]
    stems = {path.stem for path in paths}
    assert {path.name for path in paths} == {stem + end for stem in stems for end in (".png", ".svg", ".csv")}
    for stem in stems:
        assert (folder / "figures" / f"{stem}.png").read_bytes().startswith(b"\x89PNG\r\n")
        assert ET.parse(folder / "figures" / f"{stem}.svg").getroot().tag.endswith("svg")
    return records, {stem: read(folder / "figures" / f"{stem}.csv") for stem in sorted(stems)}


def agree(name, records, tables):
    """The rows behind a figure are the records."""
    if name in POSTERIOR:
        rows = [row for table in tables.values() for row in table]
        for r in records:
            states = range(r["size"]) if name == "posterior-evolution" else [r["size"] - 1]
            own = [row for row in rows if row["agent"] == r["agent"]]
            for column, taken in (("posterior_mean", "mean"), ("posterior_sd", "sd")):
                expected = [s[taken][state][action] for s in r["snapshots"] for state in states for action in (0, 1)]
                assert [float(row[column]) for row in own] == expected
            assert {float(row["true"]) for row in own} == {x for state in states for x in r["true"][state]}
        return
    (rows,) = tables.values()
    if name in CURVES:
        expected = [x for r in records for x in r["curve"]["mean"]]
        assert [float(row["mean"]) for row in rows] == expected
        assert [row["agent"] for row in rows] == [r["agent"] for r in records for _ in r["curve"]["mean"]]
    elif name == "normalised-regret":
        assert len({r["size"] for r in records}) > 1
        for row, r in zip(rows, records, strict=True):
            assert (row["agent"], int(row["size"])) == (r["agent"], r["size"])
            assert float(row["mean"]) == pytest.approx(np.mean(r["normalised_regret"]))
    elif name == "ledger":
        for row, r in zip(rows, records, strict=True):
            assert (row["env"], row["variant"]) == (r["env"], r["label"])
            assert [float(row[key]) for key in ("lost_share", "mean_loss")] == [
                r["ledger"][key] for key in ("lost_share", "mean_loss")
            ]
    else:
        for row, r in zip(rows, records, strict=True):
            assert (row["env"], int(row["size"]), row["variant"]) == (r["env"], r["size"], r["label"])
            assert float(row[f"{DOTS[name]}_mean"]) == pytest.approx(np.mean(r[DOTS[name]]))
            assert int(row["seeds"]) == len(r[DOTS[name]])


def test_without_a_name_every_figure_is_listed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = call("reproduce")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert [line.split()[0] for line in lines] == list(FIGURES)
    for line, figure in zip(lines, FIGURES.values(), strict=True):
        assert figure.paper in line and figure.shows in line
    assert list(tmp_path.iterdir()) == []


def test_the_chain_is_drawn_from_its_table(tmp_path, rows):
    records, tables = make("chain", tmp_path / "run", rows)
    assert records == []
    mdp = Chain(6).make(jax.random.key(0))
    drawn = np.zeros((6, 2, 6))
    for row in tables["chain"]:
        place = int(row["state"]) - 1, ("left", "right").index(row["action"]), int(row["next_state"]) - 1
        drawn[place] = float(row["probability"])
        assert float(row["mean_reward"]) == float(mdp.reward_mean[place])
    np.testing.assert_array_equal(drawn, np.asarray(mdp.transition, float))


@pytest.mark.parametrize("name", [name for name in SIMULATED if name not in ("chain", *POSTERIOR)])
def test_a_figure_shows_its_records_and_is_not_run_twice(tmp_path, simulated, rows, name):
    records, tables = make(name, tmp_path / "run", rows)
    cells = FIGURES[name].cells("smoke")
    assert [(r["env"], r["size"], r["agent"], r["label"], r["steps"]) for r in records] == [
        (cell.env, cell.size, cell.agent.name, cell.variant, cell.steps) for cell in cells
    ]
    agree(name, records, tables)
    worlds = {(cell.environment, cell.steps, cell.seeds) for cell in cells}
    assert len(simulated) == len(cells) + len(worlds)  # every cell, and an oracle for each world
    simulated.clear()
    assert complete(RunFolder.open(tmp_path / "run"), cells, lambda label, total: None) == records
    assert simulated == []


@pytest.mark.parametrize("scale", ["smoke", "quick", "paper"])
@pytest.mark.parametrize("name", FIGURES)
def test_the_cells_of_a_figure_differ_from_one_another(name, scale):
    # Two equal cells would be one record, shown twice.
    cells = FIGURES[name].cells(scale)
    assert len({json.dumps(cell.identity) for cell in cells}) == len(cells)


@pytest.mark.parametrize("scale", ["smoke", "quick", "paper"])
@pytest.mark.parametrize("name", TRAINED)
def test_every_agent_that_is_trained_for_a_figure_learns_and_is_evaluated(name, scale):
    for cell in FIGURES[name].cells(scale):
        assert cell.settings.loop.random <= cell.episodes  # the last is evaluated, and by a policy


def test_an_interrupted_reproduction_goes_on(tmp_path, simulated, monkeypatch, rows):
    whole, _ = make("regret", tmp_path / "whole", rows)
    simulated.clear()
    working = study.simulate

    def struck(environment, agent, **options):
        if isinstance(agent, PSRL):
            raise KeyboardInterrupt
        return working(environment, agent, **options)

    line = f"reproduce regret --scale smoke --out '{tmp_path / 'my run'}'"
    with monkeypatch.context() as patch:
        patch.setattr(study, "simulate", struck)
        code, out, err = call(line)
    assert (code, out) == (130, "")
    assert err.splitlines() == [f"interrupted; what has finished is saved, go on with: cdpo {line}"]
    kept = RunFolder.open(tmp_path / "my run").records()
    assert not (tmp_path / "my run" / "summary.json").exists()
    simulated.clear()
    records, _ = make("regret", tmp_path / "my run", rows)
    ran = [agent.name for agent in simulated if not isinstance(agent, Oracle)]
    assert sorted([*ran, *(r["agent"] for r in kept)]) == ["cdpo", "psrl"]
    assert "psrl" in ran and records == whole


@pytest.mark.slow
def test_the_posterior_is_looked_at_five_times_or_more_with_200_draws(tmp_path, monkeypatch, rows):
    # Figure 1 itself takes longer to compile; one agent on the shortest chain is the same code.
    tiny = PosteriorCell("chain", 2, Chain(2), PSRL(), steps=100, seeds=2)
    monkeypatch.setitem(FIGURES, "posterior", dataclasses.replace(FIGURES["posterior"], cells=lambda scale: [tiny]))
    (record,), tables = make("posterior", tmp_path / "run", rows)
    agree("posterior", [record], tables)
    assert record["draws"] == DRAWS == 200
    steps = [snapshot["steps"] for snapshot in record["snapshots"]]
    assert len(steps) >= 5 and steps == sorted(set(steps)) and steps[0] == 0 and steps[-1] == 100
    mdp = Chain(2).make(jax.random.key(0))
    _, q = policy_iteration(Model.true(mdp), Known.of(mdp), uniform_policy(mdp.allowed))
    assert record["true"] == np.asarray(q).tolist()
    before, after = (np.array(record["snapshots"][place]["sd"]) for place in (0, -1))
    assert (before > 0).all() and after.mean() < before.mean()  # data narrow the posterior
    monkeypatch.setattr(study, "simulate", None)  # a call would fail
    assert make("posterior", tmp_path / "run", rows)[0] == [record]


def test_a_study_of_real_runs(tmp_path, monkeypatch, rows):
    tiny = [Cell("chain", 2, Chain(2), Random(), steps=40, seeds=2, variant="at random")]
    monkeypatch.setitem(FIGURES, "priors", dataclasses.replace(FIGURES["priors"], cells=lambda scale: tiny))
    records, tables = make("priors", tmp_path / "run", rows)
    agree("priors", records, tables)
    assert records[0]["label"] == "at random" and np.isfinite(records[0]["normalised_regret"]).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", SIMULATED)
def test_every_figure_at_smoke(tmp_path, monkeypatch, rows, name):
    records, tables = make(name, tmp_path / "run", rows)
    if name != "chain":
        agree(name, records, tables)
    for record in records:
        if "snapshots" in record:
            assert len(record["snapshots"]) >= 5 and record["draws"] == 200
    monkeypatch.setattr(study, "simulate", None)
    assert make(name, tmp_path / "run", rows)[0] == records
