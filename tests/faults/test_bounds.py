"""What strangers wrote, JSON and archives, is bounded before anything is made of it, and refused in one line."""

import io
import json
import os
import shutil
import struct
import tracemalloc
import warnings
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cdpo
from cdpo.agents import RULES
from cdpo.commands.tabular import Tabular
from cdpo.errors import UserError, shown
from cdpo.tabular.environments import ENVIRONMENTS
from cdpo.tabular.mdp import FiniteMDP, load_mdp
from cdpo.tabular.simulation import simulate
from cdpo.tabular.study import find_environment
from cdpo.tasks import TASKS
from cdpo.training.log import Log
from cdpo.training.presets import PRESETS, preset
from cdpo.training.settings import LEARNERS, Settings
from cdpo.training.sizes import check_size
from cdpo.training.store import load_arrays, save_arrays

few = settings(max_examples=80, derandomize=True, database=None, deadline=None)
GOLDEN = Path(__file__).parent.parent / "golden" / "0.1.0" / "sac.zip"
LONGEST = 600  # characters of a line
MEMORY = 20 * 2**20

WORDS = st.text(max_size=20) | st.sampled_from(["", "a\n\x1b[2J", "\ud800", "\0", "x" * 70_000])
NUMBERS = (
    st.integers(-3, 50)
    | st.integers()
    | st.floats()
    | st.sampled_from([10**6, 10**9, -(10**9), 2e8, 1e30, 1e-320, 10**400])
)
SCALARS = st.none() | st.booleans() | NUMBERS | WORDS
JSON = st.recursive(
    SCALARS | st.just([7] * 1500),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)


def said(call):
    """The user's error of a call, which is one printable line; None where there is none."""
    try:
        call()
    except UserError as error:
        line = str(error)
        assert line.isprintable() and 0 < len(line) < LONGEST, line
        return line
    return None


def places(value, path=()):
    """Of everything in a JSON value."""
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from places(child, (*path, key))


def changed(value, path, new):
    """A copy of a JSON value with something else in one place."""
    if not path:
        return new
    value = json.loads(json.dumps(value))
    at = value
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = new
    return value


def changes(*values):
    """Any JSON value in place of any part of one of the values."""
    each = st.sampled_from([(value, path) for value in values for path in places(value)])
    return st.builds(lambda place, new: changed(*place, new), each, JSON)


def bitten(data):
    """What becomes of bytes: some are others, and the end may be cut off."""
    bites = st.lists(st.tuples(st.integers(0, len(data) - 1), st.integers(0, 255)), max_size=8)

    def made(bites, end):
        some = bytearray(data)
        for place, byte in bites:
            some[place] = byte
        return bytes(some[:end])

    return st.builds(made, bites, st.just(len(data)) | st.integers(0, len(data))) | st.binary(max_size=300)


# --- Settings ---------------------------------------------------------------------------------------------------------

TOLD = [
    Settings(rule=RULES[rule](), solver=solver, learner=learner).to_json()
    for rule in RULES
    for solver, learner in (("dyna", "sac"), ("dyna", "mpo"), ("dyna", "trpo"), ("bptt", "ppo"), ("mpc", "ppo"))
]
TABULAR = Tabular(size=(2, 3), agents=("cdpo", "bql"), steps=40, period=4)
TABULAR = TABULAR.to_json(TABULAR.cells())


@few
@given(changes(*TOLD))
def test_any_json_in_the_settings_of_an_agent_makes_an_agent_or_a_line(told):
    said(lambda: check_size(Settings.from_json(told), TASKS["pendulum-swingup"]))


@few
@given(changes(TABULAR))
def test_any_json_in_the_settings_of_a_tabular_run_makes_its_cells_or_a_line(told):
    said(lambda: Tabular.from_json(told).cells())


LARGE = 10**6


@pytest.mark.parametrize(
    ("rule", "changes", "words"),
    [
        ("cdpo", {"sac": {"hidden": (LARGE, LARGE)}}, "sac.hidden"),
        ("cdpo", {"ensemble": {"hidden": (LARGE, LARGE)}}, "ensemble.hidden"),
        ("cdpo", {"ensemble": {"heads": LARGE}}, "ensemble.heads must be at most 1000, not 1000000"),
        ("cdpo", {"ensemble": {"batch": LARGE, "hidden": (1000,)}}, "ensemble.batch"),
        ("greedy", {"rule": {"models": LARGE}}, "greedy.models must be at most 1000, not 1000000"),
        ("cdpo", {"dyna": {"particles": LARGE, "horizon": LARGE}}, "dyna.particles"),
        ("cdpo", {"dyna": {"batch": LARGE, "updates": LARGE}}, "dyna.batch"),
        ("cdpo", {"dyna": {"batch": LARGE, "expansion": "mve", "expanded": LARGE}}, "dyna.batch"),
        ("cdpo", {"learner": "mpo", "mpo": {"samples": LARGE}}, "dyna.batch"),
        ("me-trpo", {"dyna": {"particles": LARGE}}, "dyna.particles"),
        ("cdpo", {"solver": "bptt", "bptt": {"horizon": LARGE}}, "bptt.horizon"),
        ("cdpo", {"solver": "mpc", "mpc": {"candidates": LARGE}}, "mpc.candidates"),
        ("cdpo", {"solver": "mpc", "mpc": {"plans": LARGE}}, "mpc.plans"),
        ("cdpo", {"solver": "mpc", "mpc": {"particles": LARGE}}, "mpc.particles"),
        ("cdpo", {"solver": "mpc", "mpc": {"batch": LARGE, "hidden": (4000,)}}, "mpc.batch"),
        ("sac", {"rule": {"batch": LARGE}, "sac": {"hidden": (4000,)}}, "replay.batch"),
        ("ppo", {"rule": {"steps": LARGE}, "ppo": {"hidden": (4000,)}}, "newest.steps"),
        ("cdpo", {"dyna": {"returns": LARGE}}, "dyna.returns must be at most 1000, not 1000000"),
        ("cdpo", {"dyna": {"earlier": LARGE}}, "dyna.earlier must be at most 1000, not 1000000"),
        ("cdpo", {"ensemble": {"unrolled": LARGE}}, "ensemble.unrolled must be at most 1000, not 1000000"),
        ("slbo", {"rule": {"turns": LARGE}}, "slbo.turns must be at most 1000, not 1000000"),
    ],
)
def test_arrays_that_fit_nowhere_are_refused_before_any_is_made(rule, changes, words):
    told = preset("default", TASKS["half-cheetah"], rule).changed(**changes)
    line = said(lambda: check_size(told, TASKS["half-cheetah"]))
    assert line is not None and words in line
    assert "GiB for each seed" in line or "must be at most" in line


def test_an_episode_that_no_memory_holds_is_refused_before_there_is_room_for_it():
    endless = replace(TASKS["pendulum-swingup"], horizon=2 * 10**8)
    assert "episodes of 200000000 steps ask for" in said(lambda: check_size(Settings(), endless))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_far_from_these_bounds(rule, name):
    """Eight times as much of anything is allowed as any preset has."""
    told = preset(name, TASKS["half-cheetah"], rule)
    for learner in LEARNERS if "solver" in told.rule.uses else (told.learner,):
        some = told.changed(learner=learner)
        check_size(some, TASKS["half-cheetah"])
        if "dyna" in some.parts:
            check_size(some.changed(dyna={"particles": 8 * some.dyna.particles}), TASKS["half-cheetah"])
            check_size(some.changed(dyna={"batch": 8 * some.dyna.batch}), TASKS["half-cheetah"])


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"sac": {"hidden": [8] * 65}}, "sac.hidden must hold at most 64 sizes, not (8, 8, 8, 8, 8, 8, 8, 8, ...)"),
        ({"sac": {"hidden": [8] * 1001}}, "sac.hidden must hold at most 1000 whole numbers, not 1001"),
        ({"bptt": {"horizon": LARGE + 1}}, "bptt.horizon must be at most 1000000, not 1000001"),
        ({"rule": {"kl": 10**400}}, "cdpo.kl must be a finite number, not a number of 1329 bits"),
        ({"rule": {"kl": 1e31}}, "cdpo.kl must be a finite number, not 1e+31"),
        ({"loop": {"discount": float("nan")}}, "loop.discount must be a finite number, not nan"),
        ({"loop": {"evaluate": 2**63}}, "loop.evaluate must be a whole number of less than 64 bits"),
        ({"rule": {"schedule": "x" * 1001}}, "schedule"),
    ],
)
def test_numbers_lists_and_words_have_bounds_of_their_own(changes, line):
    assert line in said(lambda: Settings().changed(**changes))


def test_what_is_shown_of_a_value_is_short_printable_and_on_one_line():
    deep = []
    for _ in range(10_000):
        deep = [deep]
    for value in (deep, "x" * 10**6, "\ud800\n\x1b[2J", 10**5000, {"a": [1] * 10**5}, np.zeros((9, 9))):
        assert shown(value).isprintable() and len(shown(value)) < 200


# --- Tabular ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_an_environment_of_a_billion_states_is_refused_before_its_tables_are_made(name):
    kind = ENVIRONMENTS[name]
    tracemalloc.start()
    line = said(lambda: kind(size=10**9))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "tables [S, A, S] may have at most 16777216 entries" in line and peak < MEMORY
    made = jax.eval_shape(kind().make, jax.random.key(0))
    assert kind().shape == (made.states, made.actions)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sizes": [10**9]}, "chain has 1000000000 states and 2 actions"),
        ({"seeds": 10**6}, "--seeds must be between 1 and 10000, not 1000000"),
        ({"seeds": 10**4, "steps": 10**8}, "take fewer --seeds or --steps, or a longer --period"),
        ({"settings": {**TABULAR["settings"], "period": 10**7}}, "--period must be between 1 and 1000000"),
        ({"settings": {**TABULAR["settings"], "cdpo": {"models": 10**7}}}, "--cdpo.models must be at most 1000000"),
        (
            {"settings": {**TABULAR["settings"], "cdpo": {"models": 10**6}}, "sizes": [20]},
            "must be at most 167772 with",
        ),
        ({"settings": {**TABULAR["settings"], "bql": {"samples": 10**9}}}, "--bql.samples must be at most 1000000"),
        ({"settings": {**TABULAR["settings"], "out": 3}}, "unknown part of the settings 'out'"),
        ({"settings": {**TABULAR["settings"], "seeds": 3}}, "unknown part of the settings 'seeds'"),
    ],
)
def test_a_tabular_run_that_fits_nowhere_is_refused(changes, words):
    assert words in said(lambda: Tabular.from_json({**TABULAR, **changes}).cells())


def test_records_that_fit_nowhere_are_refused_by_the_simulation_too():
    environment, agent = ENVIRONMENTS["bandit"](), None
    assert "more than the 33554432" in said(lambda: simulate(environment, agent, seeds=1000, steps=10**6))


@pytest.mark.parametrize("name", ["x" * 400, "x" * 400 + ".npz", "a\0b", "a\0b.npz", "\ud800.npz", "\x1b[2J.npz", ""])
def test_a_name_that_no_file_can_have_names_no_environment(name):
    assert said(lambda: find_environment(name, None))


# --- Archives of an MDP -----------------------------------------------------------------------------------------------


def good(**more):
    """A small MDP's archive."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, transition=np.full((2, 1, 2), 0.5), reward_mean=np.zeros((2, 1)), **more)
    return buffer.getvalue()


def npy(array, shape=None):
    """The bytes of an array, whose header may tell another shape."""
    buffer = io.BytesIO()
    kept = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape if shape is None else shape}
    np.lib.format.write_array_header_1_0(buffer, kept)
    return buffer.getvalue() + array.tobytes()


def archive(path, *members):
    """A zip of members as they are given."""
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        warnings.simplefilter("ignore")  # of names that come twice
        for name, data in members:
            file.writestr(name, data)
    return path


HALVES = npy(np.full((2, 1, 2), 0.5))


@few
@given(bitten(good()) | bitten(good(start=0, terminal=[False, False], discount=0.5)))
def test_any_bytes_are_an_mdp_or_a_line(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "any.npz"
    path.write_bytes(data)
    said(lambda: load_mdp(path))


def test_an_archive_that_unpacks_to_far_more_than_it_holds_is_refused_unread(tmp_path):
    zeros = np.zeros((4096, 2, 4096), np.int8)
    path = archive(tmp_path / "bomb.npz", ("transition.npy", npy(zeros)), ("reward_mean.npy", npy(np.zeros(()))))
    assert path.stat().st_size < 10**5
    del zeros
    tracemalloc.start()
    line = said(lambda: load_mdp(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "has an array 'transition' of shape [4096, 2, 4096]; it may hold at most 16777216 numbers" in line
    assert peak < 2**20


def test_all_arrays_of_an_archive_together_are_bounded(tmp_path, monkeypatch):
    (tmp_path / "mdp.npz").write_bytes(good())
    load_mdp(tmp_path / "mdp.npz")
    monkeypatch.setattr("cdpo.tabular.archive.MOST_BYTES", 250)
    assert "would unpack to 0.0 GiB; 0 GiB can be read" in said(lambda: load_mdp(tmp_path / "mdp.npz"))


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([("transition.npy", HALVES), ("transition.npy", HALVES)], "has two arrays 'transition'"),
        ([("transition.npy", HALVES), ("transition", HALVES)], "has two arrays 'transition'"),
        ([("transition.npy", HALVES + bytes(10**6))], "another size than it declares"),
        ([("transition.npy", npy(np.zeros(2), (9, 9, 9)))], "another size than it declares"),
        ([("transition.npy", npy(np.zeros(2), (-2, 1, -1)))], "shape [-2, 1, -1]"),
        ([("transition.npy", npy(np.zeros(2), (2**62, 2**62)))], "may hold at most"),
        ([("transition.npy", HALVES.replace(b"\x01\x00", b"\x02\x00", 1))], "no plain array"),
        ([("transition.npy", HALVES.replace(b"<f8", b"|O8"))], "holds no numbers"),
        ([("transition.npy", HALVES.replace(b"<f8", b"<c8"))], "holds no numbers"),
        ([("tran\x1b[2Jsition.npy", HALVES)], "unknown array 'tran\\x1b[2Jsition'"),
        ([("../transition.npy", HALVES)], "unknown array '../transition'"),
    ],
)
def test_a_crafted_archive_is_refused(tmp_path, members, words):
    path = tmp_path / "crafted.npz"
    assert words in said(lambda: load_mdp(archive(path, *members)))


def test_an_archive_packed_in_another_way_or_encrypted_is_refused(tmp_path):
    path = tmp_path / "mdp.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as file:
        file.writestr("transition.npy", HALVES)
    assert "that NumPy has not packed" in said(lambda: load_mdp(path))
    data = bytearray(archive(path, ("transition.npy", HALVES)).read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(data)
    assert "that NumPy has not packed" in said(lambda: load_mdp(path))


def test_a_pipe_in_place_of_an_archive_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.npz")
    assert "there is no such file" in said(lambda: load_mdp(tmp_path / "pipe.npz"))


def test_tables_that_fit_nowhere_are_refused_wherever_they_come_from():
    wide = np.lib.stride_tricks.as_strided(np.ones(1), (3000, 2, 3000), (0, 0, 0))
    assert "transition has 3000 states and 2 actions" in said(lambda: FiniteMDP(wide.astype(bool), 0.0))


# --- Checkpoints and logs ---------------------------------------------------------------------------------------------

ARRAYS = {"weights": np.arange(6, dtype=np.float32).reshape(2, 3), "flags": np.array([True, False])}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "state.npz"
    save_arrays(path, ARRAYS, {"episode": 3, "pupils": [{"seed": 1}]})
    return path


def told_by(path):
    """The text of a checkpoint's list of arrays."""
    with zipfile.ZipFile(path) as file:
        return json.loads(file.read("meta.json"))


def retold(path, text):
    """The same checkpoint with another list."""
    out = path.with_name("retold.npz")
    with zipfile.ZipFile(path) as file, zipfile.ZipFile(out, "w") as new:
        new.writestr("meta.json", text)
        for info in file.infolist()[1:]:
            new.writestr(info.filename, file.read(info))
    return out


@few
@given(st.data())
def test_any_json_in_the_list_of_a_checkpoint_gives_its_arrays_or_a_line(saved, data):
    told = data.draw(changes(told_by(saved)))
    said(lambda: load_arrays(retold(saved, json.dumps(told))))


@few
@given(st.data())
def test_any_bytes_are_a_checkpoint_or_a_line(saved, data):
    path = saved.with_name("any.npz")
    path.write_bytes(data.draw(bitten(saved.read_bytes())))
    said(lambda: load_arrays(path))


@pytest.mark.parametrize(
    "text",
    ["1e999", "-1e999", "NaN", "Infinity", "9" * 10**5, "[" * 10**5 + "]" * 10**5, '"\\ud800"', "[{}]"],
    ids=["1e999", "-1e999", "nan", "infinity", "digits", "deep", "surrogate", "list"],
)
def test_numbers_that_are_none_and_endless_nesting_in_a_checkpoint_are_damage(saved, text):
    whole = json.dumps(told_by(saved)).replace('"episode": 3', f'"episode": {text}')
    line = said(lambda: load_arrays(retold(saved, whole)))
    assert line is None if text in ('"\\ud800"', "[{}]") else "is damaged" in line
    assert said(lambda: load_arrays(retold(saved, text))) is not None


def test_a_list_of_arrays_that_would_parse_to_gigabytes_is_not_parsed(saved):
    path = retold(saved, "[" + "[]," * (1 << 23) + "[]]")
    tracemalloc.start()
    line = said(lambda: load_arrays(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "meta.json is too large" in line and peak < MEMORY


LOG = struct.pack("<8sII", b"cdpo-log", 1, 3)
LOG += struct.pack("<I", zlib.crc32(LOG))
LOG += b"".join(row + struct.pack("<I", zlib.crc32(row, n)) for n, row in enumerate([bytes(12)] * 5))


@few
@given(bitten(LOG), st.integers(0, 7) | st.integers(0, 2**80), st.integers(1, 5) | st.integers(1, 2**80))
def test_any_bytes_are_a_log_or_a_line(tmp_path_factory, data, rows, width):
    path = tmp_path_factory.getbasetemp() / "any.bin"
    path.write_bytes(data)
    said(lambda: Log.read(path, rows, width))


# --- Whole runs -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(few, max_examples=60)
@given(data=st.data())
def test_any_json_in_the_settings_of_a_run_is_loaded_or_gives_a_line(tmp_path_factory, data):
    run = tmp_path_factory.mktemp("golden") / "run"
    shutil.unpack_archive(GOLDEN, run.parent)
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "settings": data.draw(changes(config["settings"]))}))
    said(lambda: cdpo.load(run))
