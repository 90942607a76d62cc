"""Results that are kept: parts made elsewhere are joined, newer ones take the place of older, figures follow."""

import json
from pathlib import Path

import pytest

from cdpo.errors import UserError
from cdpo.experiments import FIGURES
from cdpo.report.style import house
from cdpo.runs import RunFolder

SOURCE = Path(__file__).parents[2] / "tools" / "keep.py"


@pytest.fixture(scope="module")
def keep(script):
    return script(SOURCE).keep


def made(path, figure="tuning", **finals):
    """A reproduction's folder with a record for each bound that `finals` names, by its final return."""
    folder = RunFolder.create(path, {"kind": "reproduction", "figure": figure, "versions": {"jax": "1"}})
    for bound, final in finals.items():
        told = {"task": "pendulum-swingup-0.1", "agent": "cdpo", "label": f"CDPO, kl 0.{bound[1:]}", "seeds": [100]}
        told |= {"episodes": 2, "wall_s": 1.0, "lanes": 1, "settings": {"sac": {"learning_rate": 1 / 3}}}
        curves = [{"env_steps": [400, 800], "eval_return": [None, final]}]
        ledger = [{"lost_share": None, "kl_of_bound": None}]
        folder.append({**told, "final": [final], "curves": curves, "ledger": ledger})
    return path


def test_parts_are_joined_in_the_order_of_the_figure_and_newer_ones_win(keep, tmp_path, rows):
    into = tmp_path / "kept"
    keep("tuning", [made(tmp_path / "a", _3=1 / 3, _1=2.0)], into, "aaaaaaa")
    keep("tuning", [made(tmp_path / "b", _03=3.0), made(tmp_path / "c", _1=4.0)], into, "bbbbbbb")
    kept = [json.loads(text) for text in (into / "records.jsonl").read_text().splitlines()]
    assert [(each["label"], each["final"], each["commit"]) for each in kept] == [
        ("CDPO, kl 0.03", [3.0], "bbbbbbb"),
        ("CDPO, kl 0.1", [4.0], "bbbbbbb"),
        ("CDPO, kl 0.3", [0.333333333], "aaaaaaa"),
    ]
    assert kept[2]["settings"] == {"sac": {"learning_rate": 1 / 3}}  # what was told stays as it was
    assert [row["interquartile_mean"] for row in rows(into / "trials.csv")] == ["3.0", "4.0", "0.333333333"]
    told = json.loads((into / "manifest.json").read_text())
    assert {path.name for path in into.iterdir()} == {*told["files"], "manifest.json"}
    assert told["files"].keys() == {"records.jsonl", "trials.csv", "trials.svg", "evaluations.csv"}
    assert told["command"] == "cdpo reproduce tuning --scale paper --tasks pendulum-swingup-0.1"
    assert [(run["of"], run["commit"], run["versions"]) for run in told["runs"]] == [
        (["pendulum-swingup-0.1: CDPO, kl 0.03", "pendulum-swingup-0.1: CDPO, kl 0.1"], "bbbbbbb", {"jax": "1"}),
        (["pendulum-swingup-0.1: CDPO, kl 0.3"], "aaaaaaa", {"jax": "1"}),
    ]


def test_a_commit_is_to_be_a_hash(keep, tmp_path):
    with pytest.raises(UserError, match="'main' is no hash of a commit"):
        keep("tuning", [made(tmp_path / "a", _1=2.0)], tmp_path / "kept", "main")


def test_what_is_kept_can_be_drawn_again_without_its_folders_and_what_was_written_of_it_stays(keep, tmp_path):
    into = tmp_path / "kept"
    keep("tuning", [made(tmp_path / "a", _1=2.0)], into, "aaaaaaa")
    told = json.loads((into / "manifest.json").read_text())
    told |= {"asks": "Which bound?", "status": "superseded", "by": "another", "date": "2020-02-02"}
    told["files"]["trials.csv"] = {"note": "Of one seed."}
    (into / "manifest.json").write_text(json.dumps(told))
    before = {path.name: path.read_bytes() for path in into.iterdir() if path.name != "manifest.json"}
    (into / "trials.svg").unlink()
    keep("tuning", [], into, "")
    assert json.loads((into / "manifest.json").read_text()) == told
    assert {name: (into / name).read_bytes() for name in told["files"]} == before


def test_what_a_newer_version_keeps_is_left_alone(keep, tmp_path):
    into = tmp_path / "kept"
    keep("tuning", [made(tmp_path / "a", _1=2.0)], into, "aaaaaaa")
    manifest = into / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": 2}))
    before = {path: path.read_bytes() for path in into.iterdir()}
    with pytest.raises(UserError, match="install a newer cdpo"):
        keep("tuning", [made(tmp_path / "b", _3=1.0)], into, "bbbbbbb")
    assert {path: path.read_bytes() for path in into.iterdir()} == before


def test_cells_that_another_figure_keeps_are_taken_over_but_replace_nothing(keep, tmp_path):
    cells = [json.loads(json.dumps(cell.identity)) for cell in FIGURES["baselines"].cells("paper")]
    cell = next(each for each in cells if each["task"] == "pusher")
    del cell["settings"]["sac"]["negentropy"]  # as if it had come later
    nothing = dict.fromkeys(("lost_share", "lost_return", "unsettled", "kl_of_bound", "kl_overspent"))
    cell |= {"final": [1.0] * 6, "wall_s": 1.0, "lanes": 6, "stopped": {}, "ledger": [nothing] * 6}
    cell |= {"curves": [{"episode": [1], "env_steps": [400], "eval_return": [1.0]}] * 6}  # and no coverage

    def kept(name, **changes):
        (tmp_path / name).mkdir()
        (tmp_path / name / "records.jsonl").write_text(json.dumps(cell | {"commit": name} | changes) + "\n")
        return tmp_path / name

    other = cell["settings"] | {"loop": cell["settings"]["loop"] | {"discount": 0.5}}
    into = kept("into", task="half-cheetah")
    not_these = [kept("settings", settings=other), kept("seeds", seeds=[7]), kept("foreign", task="lqr")]
    records = keep("baselines", [], into, "", [*not_these, kept("same"), kept("late", task="half-cheetah")])
    assert [(each["task"], each["commit"]) for each in records] == [("pusher", "same"), ("half-cheetah", "into")]
    with pytest.raises(UserError, match="keeps nothing"):
        keep("baselines", [], into, "", [tmp_path / "nowhere"])


@pytest.mark.slow
def test_episodes_that_nothing_reads_are_not_kept_and_figures_stay_as_they_are(keep, tmp_path, curve, record):
    steps, returns = [10, 20, 30, 40, 50, 60], [None, 1.0, None, 3.0, None, None]
    world = {"episode": [0, 1, 2, 3, 4, 5], "env_steps": steps, "return": [5.0] * 6, "eval_return": returns}
    never = {name: [] for name in world}
    models = curve(steps[:3], [None, 2.5])
    alone = record("sac", [curve([], [])] * 2) | {"curves": [world, never]}
    told = [record("cdpo", [curve([], [])]) | {"curves": [models]}, alone, alone | {"label": "SAC, longer"}]
    folder = RunFolder.create(tmp_path / "made", {"figure": "baselines", "versions": {}})
    for each in told:
        folder.append(each)
    kept = keep("baselines", [folder.path], tmp_path / "kept", "aaaaaaa")
    assert kept[0]["curves"] == [models]
    read = {"episode": [1, 3, 5], "env_steps": [20, 40, 60], "return": [5.0] * 3, "eval_return": [1.0, 3.0, None]}
    assert [each["curves"] for each in kept[1:]] == [[read, never]] * 2
    with house():
        drawn = FIGURES["baselines"].draw(told, tmp_path / "whole")
    files = [path for path in drawn if path.suffix != ".png"]
    beside = {"records.jsonl", "manifest.json"}
    assert {path.name for path in files} == {path.name for path in (tmp_path / "kept").iterdir()} - beside
    assert all((tmp_path / "kept" / path.name).read_bytes() == path.read_bytes() for path in files)


def test_another_figure_is_refused_and_nothing_is_lost(keep, tmp_path):
    into = tmp_path / "kept"
    keep("tuning", [made(tmp_path / "a", _1=2.0)], into, "aaaaaaa")
    before = (into / "records.jsonl").read_bytes()
    with pytest.raises(UserError, match="is no reproduction of tuning"):
        keep("tuning", [made(tmp_path / "b", figure="settings", _1=3.0)], into, "bbbbbbb")
    assert (into / "records.jsonl").read_bytes() == before
