import json
import re
from pathlib import Path

import numpy as np
import pytest

import cdpo
from cdpo.experiments import FIGURES
from cdpo.experiments.training import TrainingCell
from cdpo.training.settings import Settings

RESULTS = Path(__file__).parent.parent / "results"
POLICIES = RESULTS / "policies"
STUDIES = {path.parent: json.loads(path.read_text()) for path in sorted(RESULTS.rglob("manifest.json"))}
MADE = {"date", "commit", "command", "settings", "versions", "hardware"}  # what is told of all data
MORE = {"wall_s", "note", "runs"}
LEAST = {"half-cheetah": 9_000, "HalfCheetah-v5": 9_000, "pusher": -60}
# Where observations are np.linspace(-1, 1, d), of the version that kept the policy.
ACTIONS = {
    "half-cheetah": [-0.9343302, 0.9866143, -0.9423738, 0.9245411, -0.0670465, -0.3264706],
    "HalfCheetah-v5": [-0.9855575, 0.9866142, -0.9858288, -0.8945302, -0.9811441, 0.5567459],
    "pusher": [1.1848898, 0.8978908, 0.1161893, 0.3988962, 0.2950553, 0.2373593, 0.8497455],
}

# Cells of figures whose presets have changed since they were run, and those that were not run yet. The docs say so.
OUTDATED: set[tuple[str, str, str]] = set()
# Their random episodes were pink where policies are, and are white now. The docs say that, too.
CHEETAHS = {"half-cheetah", "HalfCheetah-v5"}
LONGER = {("baselines", "cartpole-swingup", f"{agent}, longer") for agent in ("SAC", "PPO", "MPO")}
TO_COME = {("published", "HalfCheetah-v5", "mbpo"), *LONGER}


def test_every_file_is_listed_by_the_manifest_of_its_study_and_nothing_else_is():
    there = [path for path in RESULTS.rglob("*") if path.is_file() and path.name not in {"manifest.json", "README.md"}]
    assert sorted(study / name for study, told in STUDIES.items() for name in told["files"]) == sorted(there)


def test_results_hold_no_programs():
    assert not list(RESULTS.rglob("*.py"))


def chains(told):
    """Who is asked of a file, or of one of its runs: itself, then its file, then the study."""
    for name, file in told["files"].items():
        runs = file.get("runs") or told.get("runs") or [{}]
        yield from ((name, [run, file, told]) for run in runs)


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.relative_to(RESULTS).as_posix())
def test_a_manifest_says_what_is_asked_and_where_every_file_is_from_or_that_it_is_not_known(study):
    told = STUDIES[study]
    assert told.keys() <= {"format", "asks", "status", "by", "files"} | MADE | MORE
    assert told["format"] == 1 and told["asks"] and told["status"]
    for name, chain in chains(told):
        run, file, _ = chain
        assert file.keys() <= {"status", "by"} | MADE | MORE, name
        assert run.keys() <= {"of", "note", "wall_s"} | MADE, name
        for key in MADE:
            said = [entry[key] for entry in chain if key in entry]
            assert said, f"{name} does not tell its {key}"
            assert said[0] is not None or any("note" in entry for entry in chain), (
                f"why {name} has no {key} is not told"
            )


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.relative_to(RESULTS).as_posix())
def test_commits_are_hashes_and_what_is_superseded_is_so_by_what_is_there_or_by_a_change_that_is_told(study):
    told = STUDIES[study]
    files = list(told["files"].values())
    for entry in (told, *files):
        assert entry.get("status", "current") in {"current", "superseded"}
        assert (entry.get("status") == "superseded") == ("by" in entry)
        if "by" in entry and entry["by"] is None:  # by a change of the code
            assert re.search(r"to be run again.*\b[0-9a-f]{7,40}\b", entry["note"])
        elif "by" in entry:
            by = RESULTS / entry["by"]
            assert by in STUDIES or by.name in STUDIES[by.parent]["files"]
    for entry in (told, *files, *(run for each in (told, *files) for run in each.get("runs", ()))):
        assert entry.get("commit") is None or re.fullmatch("[0-9a-f]{7,40}", entry["commit"])
        assert entry.get("date") is None or re.fullmatch(r"\d{4}-\d\d-\d\d", entry["date"])


def test_every_kept_policy_is_known():
    assert {path.name for path in POLICIES.iterdir() if path.is_dir()} == set(LEAST)


@pytest.fixture(scope="module", params=LEAST)
def kept(request):
    return request.param, cdpo.load(POLICIES / request.param)


@pytest.mark.slow(besides="half-cheetah")
def test_a_kept_policy_earns_what_is_told_of_it(kept):
    name, agent = kept
    assert agent.task.name == name
    assert agent.evaluate(episodes=1).mean() > LEAST[name]


def test_a_kept_policy_acts_as_it_did_when_it_was_kept(kept):
    name, agent = kept
    seen = np.linspace(-1, 1, agent.task.observations)
    # The last bits of products are other ones on another processor.
    np.testing.assert_allclose(agent.predict(seen, deterministic=True)[0], ACTIONS[name], atol=1e-5)


def test_kept_runs_have_the_settings_that_their_figures_have_now_but_for_those_that_are_known():
    outdated, to_come = set(), set()
    for figure in ("exploration", "ablation", "baselines", "published"):
        lines = (RESULTS / "deep" / figure / "records.jsonl").read_text().splitlines()
        kept = {(told["task"], told["label"] or told["agent"]): told["settings"] for told in map(json.loads, lines)}
        for (task, _), told in kept.items():  # before it was told, the noise of random episodes was that of policies
            told["loop"].setdefault("random_noise", "white" if task in CHEETAHS else told["loop"]["noise"])
        for cell in FIGURES[figure].cells("paper"):
            assert isinstance(cell, TrainingCell)
            name = cell.task, cell.label or cell.settings.rule.name
            if name not in kept:
                to_come.add((figure, *name))
            else:
                kept[name]["loop"]["evaluate"] = cell.settings.loop.evaluate  # which changes nothing that is learned
                told = Settings.from_json(kept[name])  # of what was not told, defaults
                if told.to_json() != cell.settings.to_json():
                    outdated.add((figure, *name))
    assert (outdated, to_come) == (OUTDATED, TO_COME)
