"""What a run will need is known before it begins."""

import jax
import pytest

from cdpo.errors import Notice
from cdpo.tasks import find_task
from cdpo.training import memory
from cdpo.training.loop import Trainer, capacity_for
from cdpo.training.presets import preset
from cdpo.training.sizes import held, row_width


@pytest.mark.parametrize("agent", ["cdpo", "sac", "mbpo"])
def test_what_a_trainer_holds_was_told_beforehand(agent):
    task = find_task("half-cheetah")
    settings = preset("default", task, agent)
    [chunk] = Trainer(task, settings, [0]).chunks
    has = sum(leaf.size for leaf in jax.tree.leaves((chunk.mind, chunk.replay.rows)))
    told = capacity_for(task, 0) * row_width(task) + held(settings, task)
    assert 0.9 < told / has < 1.3


def test_more_seeds_and_longer_runs_need_more():
    task = find_task("half-cheetah")
    settings = preset("default", task, "cdpo")
    least = memory.needed(settings, task, 1, 10)
    assert least < memory.needed(settings, task, 2, 10)
    assert least < memory.needed(settings, task, 1, 1000)


def test_too_little_memory_is_told_and_enough_is_not(monkeypatch):
    task = find_task("half-cheetah")
    asked = preset("default", task, "cdpo"), task, 6, 100
    monkeypatch.setattr(memory, "free", lambda: memory.needed(*asked) - 1)
    with pytest.warns(Notice, match=r"need about \d+\.\d GiB of memory, and \d+\.\d GiB are free; fewer seeds"):
        memory.warn_if_short(*asked)
    monkeypatch.setattr(memory, "free", lambda: memory.needed(*asked))
    memory.warn_if_short(*asked)


def test_the_system_tells_what_is_free():
    assert 1 << 20 < memory.free() < 1 << 50
