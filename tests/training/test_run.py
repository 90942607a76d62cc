"""A run survives anything, and ends as if nothing had happened."""

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

import cdpo
from cdpo.training.log import Log
from cdpo.training.store import load_arrays, save_arrays

pytestmark = pytest.mark.slow  # each trains in several processes


def state(folder: Path) -> dict[str, np.ndarray]:
    arrays, meta = load_arrays(folder / "checkpoints" / "state.npz")
    rows = {f"replay {p['seed']}": Log.read(folder / "checkpoints" / f"replay-{p['seed']}.bin", p["rows"], 8)
            for p in meta["pupils"]}  # fmt: skip
    return {**arrays, **rows}


def assert_same(one: Path, other: Path, told) -> None:
    assert told(one) == told(other)
    first, second = state(one), state(other)
    assert list(first) == list(second)
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (one, other)]
    assert summaries[0]["eval_returns"] == summaries[1]["eval_returns"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory, child, tiny_words) -> Path:
    """Never interrupted: two seeds, the random episode and three more."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    result = child("train", *tiny_words, "--seeds", "2", "--episodes", "3", "--out", str(folder))
    assert result.returncode == 0, result.stderr
    return folder


POINTS = [
    ("cdpo.training.run", "save_arrays", "before", 2),  # logs written, state not
    ("cdpo.training.run", "Log.append", "after", 5),  # one seed's rows written, the other's not
    ("os", "replace", "before", 4),  # in the middle of an atomic write
    ("cdpo.training.run", "save_arrays", "after", 2),  # and nothing after
    ("cdpo.runs", "RunFolder.extend", "after", 3),  # metrics ahead of the state
]


@pytest.mark.parametrize("point", POINTS, ids=lambda point: f"{point[2]} {point[1]} {point[3]}")
def test_killed_and_resumed_it_ends_bit_equal_to_the_run_that_was_not(tmp_path, child, tiny_words, whole, told, point):
    folder = tmp_path / "run"
    child("train", *tiny_words, "--seeds", "2", "--episodes", "3", "--out", str(folder), kill=point)
    if point[1] == "replace":
        assert list(folder.rglob(".cdpo-*.tmp"))  # what was about to be renamed
    result = child("resume", str(folder))
    assert result.returncode == 0, result.stderr
    assert_same(folder, whole, told)
    assert not list(folder.rglob(".cdpo-*.tmp"))


def test_a_checkpoint_from_before_iterations_were_counted_had_one_for_each_episode(tmp_path, whole):
    shutil.copytree(whole, tmp_path / "run")
    path = tmp_path / "run" / "checkpoints" / "state.npz"
    arrays, meta = load_arrays(path)
    counted = [pupil.pop("iterations") for pupil in meta["pupils"]]
    save_arrays(path, arrays, meta)
    assert [pupil.iterations for pupil in cdpo.load(tmp_path / "run")._trainer.pupils] == counted == [3, 3]


@pytest.fixture
def survived(tmp_path, child, told):
    """Trains with some words, whole and killed before a checkpoint of the given number; the whole run's folder."""

    def survive(words: list[str], number: int) -> Path:
        whole, folder = tmp_path / "whole", tmp_path / "run"
        assert child("train", *words, "--out", str(whole)).returncode == 0
        child("train", *words, "--out", str(folder), kill=("cdpo.training.run", "save_arrays", "before", number))
        result = child("resume", str(folder))
        assert result.returncode == 0, result.stderr
        assert_same(folder, whole, told)
        return whole

    return survive


def test_so_it_does_where_agents_learn_within_episodes_after_several_random_ones(survived, tiny_words):
    words = [*tiny_words, "--loop.stretch", "5", "--loop.random", "2", "--dyna.earlier", "2"]
    whole = survived([*words, "--seeds", "2", "--episodes", "4"], 4)
    assert min(pupil.iterations for pupil in cdpo.load(whole)._trainer.pupils) > 3


@pytest.mark.parametrize("kind", ["maac", "svg"])
def test_so_it_does_by_back_propagation_through_time(survived, tiny_bptt_words, told, kind):
    whole = survived([*tiny_bptt_words, "--bptt.kind", kind, "--episodes", "2"], 2)
    assert {"pi_gradient_norm", "pi_gradient_norm_max", "pi_imagined_return", "pi_kept"} <= told(whole)[-1].keys()


def test_so_it_does_by_plans(survived, tiny_mpc_words, told):
    whole = survived([*tiny_mpc_words, "--episodes", "2"], 2)
    assert {"pi_gain", "pi_imitation", "pi_imagined_return", "pi_kept"} <= told(whole)[-1].keys()


@pytest.mark.parametrize("number", range(6))
def test_killed_at_random_moments_it_ends_bit_equal(tmp_path, child, tiny_words, whole, told, number):
    folder, chance = tmp_path / "run", random.Random(number)
    point = ("os", "fsync", chance.choice(["before", "after"]), chance.randint(5, 20))
    child("train", *tiny_words, "--seeds", "2", "--episodes", "3", "--out", str(folder), kill=point)
    assert child("resume", str(folder)).returncode == 0
    assert_same(folder, whole, told)


def test_told_to_go_on_it_equals_the_run_that_was_longer_from_the_start(tmp_path, child, tiny_words, whole, told):
    folder = tmp_path / "run"
    assert child("train", *tiny_words, "--seeds", "2", "--episodes", "2", "--out", str(folder)).returncode == 0
    assert told(folder) == told(whole)[: 2 * 3]
    finished = child("resume", str(folder))
    assert finished.returncode == 2 and "has finished" in finished.stderr and finished.stderr.count("\n") == 1
    assert child("resume", str(folder), "--episodes", "1").returncode == 0
    assert_same(folder, whole, told)


def test_a_seed_has_the_same_bits_in_any_company(tmp_path, child, tiny_words, whole, told):
    folder = tmp_path / "run"
    result = child("train", *tiny_words, "--seed", "1", "--episodes", "3", "--out", str(folder))
    assert result.returncode == 0, result.stderr
    assert told(folder) == [record for record in told(whole) if record["seed"] == 1]


INTERRUPTED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a background shell takes away
from cdpo.training.run import Journal
write = Journal.write
def interrupted(self, lived):
    write(self, lived)
    if self.trainer.episode == 2:
        os.kill(os.getpid(), signal.SIGINT)
Journal.write = interrupted
sys.argv = ["cdpo", *sys.argv[5:]]
from cdpo.cli import main
main()
"""


def test_ctrl_c_saves_says_how_to_go_on_and_exits_with_130(tmp_path, tiny_words, child, whole, told):
    folder = tmp_path / "run"
    words = ["train", *tiny_words, "--seeds", "2", "--episodes", "3", "--out", str(folder)]
    result = child(*words, script=INTERRUPTED)
    assert result.returncode == 130, result.stderr
    assert f"cdpo resume {folder}" in result.stderr
    assert child("resume", str(folder)).returncode == 0
    assert_same(folder, whole, told)


@pytest.mark.parametrize("damage", ["truncated", "flipped", "pickle", "gone log", "other shapes"])
def test_if_no_checkpoint_is_whole_that_is_one_line_and_nothing_is_lost(tmp_path, child, whole, edited, damage):
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    (folder / "summary.json").unlink()
    for path in (folder / "checkpoints" / name for name in ("state.npz", "state-before.npz")):
        data = bytearray(path.read_bytes())
        match damage:
            case "truncated":
                path.write_bytes(data[: len(data) // 2])
            case "flipped":
                middle = len(data) // 2
                data[middle : middle + 100] = bytes(byte ^ 1 for byte in data[middle : middle + 100])
                path.write_bytes(data)
            case "pickle":
                path.write_bytes(b"\x80\x04cos\nsystem\n(S'touch hacked'\ntR.")
    match damage:
        case "gone log":
            (folder / "checkpoints" / "replay-1.bin").unlink()
        case "other shapes":
            config = json.loads((folder / "config.json").read_text())
            config["settings"]["sac"]["hidden"] = [9]
            edited(folder / "config.json", **config)

    def contents():
        return {each: each.read_bytes() for each in folder.rglob("*") if each.is_file() and each.name != ".lock"}

    before = contents()
    result = child("resume", str(folder))
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1 and "Traceback" not in result.stderr
    assert contents() == before


def test_evaluate_reads_the_policies_and_prints_json(child, whole):
    result = child("evaluate", str(whole), "--episodes", "2", "--json")
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    assert [len(each["returns"]) for each in answer["seeds"]] == [2, 2]
    assert answer["task"] == "pendulum-swingup" and answer["agent"] == "cdpo"


def test_the_folder_holds_what_the_contract_says(whole, told):
    records = told(whole)
    assert [(record["seed"], record["episode"]) for record in records] == [(s, e) for e in range(4) for s in (0, 1)]
    assert records[-1]["env_steps"] == 80 and records[-1]["episode_length"] == 20
    assert records[0]["eval_return"] is None and records[-1]["eval_return"] is not None
    summary = json.loads((whole / "summary.json").read_text())
    assert len(summary["returns"][0]) == 4 and len(summary["eval_returns"][0]) == 3
    assert {"settings", "versions", "hardware", "wall_s"} <= set(summary)
    assert list((whole / "figures").iterdir())
    assert list(whole.glob("events.out.tfevents.*"))
