"""How long a half-cheetah lay on its back, held against the physics."""

from pathlib import Path

import numpy as np
import pytest

import cdpo
from cdpo.runs import RunFolder
from cdpo.tasks import find_task
from cdpo.training.collect import streams, training_life

SOURCE = Path(__file__).parents[2] / "tools" / "upside_down.py"
TINY = {
    "ensemble": {"heads": 2, "hidden": (8,), "steps": 20},
    "dyna": {"rounds": 1, "updates": 1, "particles": 4, "horizon": 3, "batch": 8},
    "sac": {"hidden": (8,)},
}


@pytest.mark.slow
def test_every_episode_of_a_run_is_told_as_it_was(script, tmp_path):
    run = tmp_path / "run"
    cdpo.CDPO("half-cheetah", seed=2, models=2, **TINY).learn(2).save(run)
    lines = script(SOURCE).measure(run, "tiny")
    lived = [(line["seed"], line["episode"], line["return"]) for line in RunFolder.open(run).records()]
    assert [(line["seed"], line["episode"]) for line in lines] == [at[:2] for at in lived]
    assert [line["return"] for line in lines] == pytest.approx([at[2] for at in lived], abs=0.01)
    task, turned = find_task("half-cheetah"), []
    environment = task.make()
    first = training_life(environment, task, 2, 0, "white", random=True).go(None, task.horizon)
    environment.reset(seed=streams(2, 1, 0)[0])
    for action in first[:, 18:24]:
        turned.append(np.cos(environment.unwrapped.data.qpos[2]) < 0)
        environment.step(action)
    assert 0 < np.mean(turned) < 1 and lines[0]["upside_down"] == pytest.approx(np.mean(turned), abs=0.002)


@pytest.mark.slow
def test_no_other_task_has_a_back(script, tmp_path):
    cdpo.PPO("inverted-pendulum", seed=0).save(tmp_path / "run")
    with pytest.raises(cdpo.errors.UserError, match="inverted-pendulum; only a half-cheetah has a back"):
        script(SOURCE).measure(tmp_path / "run", "none")
