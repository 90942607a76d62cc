"""Run folders of earlier versions: they load, predict, resume and show as they did there, for as long as cdpo lives."""

import json
import zipfile
from pathlib import Path

import jax
import numpy as np
import pytest

import cdpo
from cdpo.cells import record_of
from cdpo.cli import _run
from cdpo.commands.tabular import Tabular
from cdpo.experiments import FIGURES
from cdpo.report import write_report
from cdpo.report.style import house
from cdpo.runs import RunFolder
from cdpo.solvers.policy import HostPolicy
from cdpo.training.config import seeds_of, settings_of, task_of
from cdpo.training.log import Log
from cdpo.training.loop import Trainer
from cdpo.training.run import POLICY, STATE, Journal
from cdpo.training.schema import names, upgraded
from cdpo.training.store import load_arrays, restore

GOLDEN = Path(__file__).parent / "golden"
ZIPS = {f"{path.parent.name}/{path.stem}": path for path in sorted(GOLDEN.glob("*/*.zip"))}


def told(name):
    """What a golden folder must give."""
    with zipfile.ZipFile(ZIPS[name]) as archive:
        return json.loads(archive.read("expected.json"))


AGENTS, TRAINED, TABULAR, REPRODUCED = (
    [name for name in ZIPS if told(name)["kind"] == kind] for kind in ("agent", "train", "tabular", "reproduction")
)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Compiled programs are not kept in the user's own cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def unpacked(tmp_path):
    """A golden folder, with which a test may do what it likes."""

    def unpack(name):
        with zipfile.ZipFile(ZIPS[name]) as archive:
            archive.extractall(tmp_path / name)
        return tmp_path / name / "run"

    return unpack


def seen_by(task):
    """The observations that goldens are asked about, [3, d]."""
    return np.random.default_rng(0).normal(0.0, 0.3, (3, task.observations)).astype(np.float32)


def assert_close(found, wanted, **near):
    """The same plain values, but for the last digits of numbers."""
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for key in wanted:
            assert_close(found[key], wanted[key], **near)
    elif isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_close(one, other, **near)
    elif isinstance(wanted, float) and isinstance(found, float):
        assert found == pytest.approx(wanted, **near)
    else:
        assert found == wanted


# What was saved is the same to the bit, and what is computed from it where processors and libraries are: others round
# the last bits of products differently. In what was learned since, such bits have gone through some gradient steps, in
# which Adam makes of the sign of next to nothing a whole step, of 1e-3 or less.
COMPUTED = {"rel": 1e-5, "abs": 1e-6}
LEARNED = {"rel": 1e-2, "abs": 1e-2}
# Other rows are held out than in 0.1.0, observations are scaled by training rows alone, and calibration is another: of
# what was learned on models since then, only what is lived through and done is held against it, not what models say.
OTHERWISE = {"rel": 5e-2, "abs": 5e-2}
LIVED = ("seed", "episode", "env_steps", "return", "eval_return", "eval_change", "episode_length", "terminated")


def said_by(agent):
    """What `tools/golden.py` asked an agent."""
    task = agent.task
    done = np.linspace(task.low, task.high, 3).astype(np.float32)
    seeds = [agent[index] for index in range(len(agent))]
    with_models = [] if agent._policy_only or agent.rule in ("sac", "mpo", "ppo") else seeds
    return {
        "rule": agent.rule,
        "task": task.name,
        "seeds": agent.seeds,
        "episodes": agent.episodes,
        "evaluated": [pupil.evaluated for pupil in agent._trainer.pupils],
        "eval_returns": [
            [each["eval_return"] for each in agent.records if each["seed"] == seed] for seed in agent.seeds
        ],
        "actions": [seed.predict(seen_by(task), deterministic=True)[0].tolist() for seed in seeds],
        "predicted": [[part.tolist() for part in seed.model.predict(seen_by(task), done)] for seed in with_models],
    }


def test_there_are_folders_of_every_kind():
    assert len(AGENTS) > 16 and TRAINED and len(TABULAR) > 1 and len(REPRODUCED) > 1


@pytest.mark.parametrize("name", AGENTS)
def test_the_checkpoint_of_an_earlier_version_fits_the_agent_of_now_and_acts_as_it_did(unpacked, name):
    """Without compiling anything."""
    folder, expected = RunFolder.open(unpacked(name)), told(name)
    settings, task, count = settings_of(folder), task_of(folder), len(expected["seeds"])
    shapes = jax.eval_shape(lambda key: settings.agent(task).begin(settings.hidden, key), jax.random.key(0))
    template = jax.tree.map(lambda leaf: np.zeros((count, *leaf.shape), leaf.dtype), shapes)
    whole = folder.path / "checkpoints" / STATE
    arrays, _ = load_arrays(whole if whole.exists() else whole.with_name(POLICY), upgraded)
    policies = restore(template, arrays, names).policy if whole.exists() else restore(template.policy, arrays, names)
    for lane, wanted in enumerate(expected["actions"]):
        acting = HostPolicy(jax.tree.map(lambda leaf, lane=lane: leaf[lane], policies))
        found = task.unscaled(acting(seen_by(task))).astype(np.float32)
        np.testing.assert_allclose(found, wanted, rtol=COMPUTED["rel"], atol=COMPUTED["abs"])


@pytest.mark.slow
@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_of_an_earlier_version_is_what_it_was_and_learns_on(unpacked, compiled_soon, name):
    folder, expected = unpacked(name), told(name)
    after = expected.pop("after", None)
    agent = cdpo.load(folder)
    assert_close(said_by(agent), {key: expected[key] for key in expected if key != "kind"}, **COMPUTED)
    assert said_by(cdpo.load(folder, policy_only=True))["actions"] == said_by(agent)["actions"]
    if after is None:  # there is nothing else in it
        return
    agent.learn(1).save(folder.parent / "again")
    again = said_by(agent)
    models, _ = again.pop("predicted"), after.pop("predicted")
    assert np.isfinite(models).all()
    assert_close(again, after, **(OTHERWISE if models else LEARNED))
    assert said_by(cdpo.load(folder.parent / "again")) == said_by(agent)


@pytest.mark.parametrize("name", TRAINED)
def test_a_training_run_that_was_interrupted_in_an_earlier_version_goes_on_where_it_was(unpacked, name):
    folder, whole = RunFolder.open(unpacked(name)), told(name)["records"]
    task = task_of(folder)
    _, meta = load_arrays(folder.path / "checkpoints" / STATE, upgraded)
    records = folder.records()
    assert meta["episode"] * len(meta["pupils"]) == len(records) < len(whole)
    told_apart, trainer = {}, Trainer(task, settings_of(folder), seeds_of(folder))
    for pupil in meta["pupils"]:
        log = folder.path / "checkpoints" / f"replay-{pupil['seed']}.bin"
        told_apart[log] = Log.read(log, pupil["rows"], 2 * task.observations + task.actions + 2)
        assert len(told_apart[log]) == pupil["steps"]
    with folder.writing():
        Journal(folder, trainer).close()
    for (log, rows), seed in zip(told_apart.items(), seeds_of(folder), strict=True):
        now = Log.read(log, len(rows), trainer.row_width)  # with the number of the episode, by what was measured
        lengths = [record["episode_length"] for record in records if record["seed"] == seed]
        np.testing.assert_array_equal(now, np.column_stack([rows, np.repeat(np.arange(len(lengths)), lengths)]))


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_a_training_run_that_was_interrupted_in_an_earlier_version_ends_as_if_it_had_not_been(unpacked, name):
    folder = unpacked(name)
    interrupted = len(RunFolder.open(folder).records())
    assert _run(["resume", str(folder)]) == 0
    records = [{key: each[key] for key in each if key != "wall_s"} for each in RunFolder.open(folder).records()]
    expected = told(name)["records"]
    assert_close(records[:interrupted], expected[:interrupted], **COMPUTED)
    assert [each.keys() for each in records] == [each.keys() for each in expected]
    records, expected = ([{key: each[key] for key in LIVED} for each in many] for many in (records, expected))
    assert_close(records, expected, **LEARNED)


@pytest.mark.parametrize("name", TABULAR)
def test_a_tabular_run_of_an_earlier_version_has_the_cells_that_it_had(unpacked, name):
    cells, expected = Tabular.from_json(RunFolder.open(unpacked(name)).config).cells(), told(name)["results"]
    assert [record_of(cell, expected) for cell in cells] == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", TABULAR)
def test_a_tabular_run_of_an_earlier_version_ends_as_it_did_or_would_have(unpacked, name):
    folder, expected = RunFolder.open(unpacked(name)), told(name)["results"]
    finished = (folder.path / "summary.json").exists()
    assert finished or 0 < len(folder.records()) < len(expected)
    assert _run(["resume", str(folder.path)]) == (2 if finished else 0)
    found = folder.summary["results"]
    for record in (*found, *expected):
        assert record.pop("stopped", {}) == {}  # 0.1.0 did not tell
        del record["curve"]["low"], record["curve"]["high"]  # its intervals were of a bootstrap
    assert_close(found, expected, **COMPUTED)


@pytest.mark.parametrize("name", REPRODUCED)
def test_a_reproduction_of_an_earlier_version_is_drawn_again(unpacked, name):
    folder, expected = RunFolder.open(unpacked(name)), told(name)["results"]
    assert sorted(map(str, folder.records())) == sorted(map(str, expected))
    with house():
        drawn = FIGURES[folder.config["figure"]].draw(expected, folder.figures)
    assert {path.name for path in drawn} <= set(folder.summary["figures"])


@pytest.mark.slow
def test_the_page_shows_folders_of_earlier_versions(unpacked, tmp_path):
    shown = ("cdpo-gaussian-average", "tabular")
    folders = [unpacked(f"0.1.0/{name}").rename(tmp_path / name) for name in shown]
    page = write_report(folders, tmp_path / "page.html").read_text()
    assert all(name in page for name in shown)
