"""Both updates on fixed data: what is told of q and pi is of q and pi, and nothing is added to the data."""

from pathlib import Path

import pytest

import cdpo

SOURCE = Path(__file__).parents[2] / "tools" / "fixed_data.py"
TINY = {
    "ensemble": {"heads": 2, "hidden": (8,), "steps": 20},
    "dyna": {"rounds": 2, "updates": 3, "particles": 4, "horizon": 3, "returns": 2, "batch": 8},
    "sac": {"hidden": (8,)},
    "rule": {"models": 2},
}


@pytest.fixture(scope="module")
def measured(script, tmp_path_factory):
    """A function of a trial's changes, on a run whose data are of three short episodes."""
    run = tmp_path_factory.mktemp("data") / "run"
    changes = {name: told for name, told in TINY.items() if name != "rule"}
    cdpo.CDPO("inverted-pendulum", seed=7, models=2, **changes).learn(2).save(run)
    before = (run / "checkpoints" / "replay-7.bin").read_bytes()
    measure = script(SOURCE).measure

    def of(iterations, **more):
        lines = measure(run, "trial", {**TINY, "rule": {**TINY["rule"], **more}}, [0, 1], iterations)
        assert (run / "checkpoints" / "replay-7.bin").read_bytes() == before
        return lines

    return of


@pytest.mark.slow
def test_q_is_what_the_referential_update_alone_makes(measured):
    both, alone = measured(2), measured(1, update="referential")
    assert [(line["iteration"], line["seed"]) for line in both] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    for ours, q in zip(both, alone, strict=False):
        for name in ("value_last", "value_q", "return_q"):
            assert ours[name] == q[name]
        assert q["return_pi"] == q["return_q"] and q["value_pi"] == pytest.approx(q["value_q"])
        assert "improvement_pi" in ours and "improvement_pi" not in q
        assert ours["kl_spent"] > 0 and ours["value_pi"] != ours["value_q"]  # so that pi is another policy
    assert both[2]["value_last"] != both[0]["value_last"]  # the second iteration goes on from the first
