import json
from pathlib import Path

import numpy as np
import pytest

import cdpo
from cdpo.experiments import FIGURES
from cdpo.experiments.training import TrainingCell
from cdpo.training.settings import Settings

RESULTS = Path(__file__).parent.parent / "results"
POLICIES = RESULTS / "policies"
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
TO_COME = {("published", "HalfCheetah-v5", "mbpo")}


def test_every_kept_policy_is_known():
    assert {path.name for path in POLICIES.iterdir()} == set(LEAST)


@pytest.fixture(scope="module", params=LEAST)
def kept(request):
    return request.param, cdpo.load(POLICIES / request.param)


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
