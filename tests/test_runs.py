import json
import math
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from cdpo import runs
from cdpo.errors import UserError
from cdpo.files import write_atomic
from cdpo.runs import RunFolder, check_free
from cdpo.sealed import sealed


def run_child(code, *arguments):
    return subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True)


# A child that dies, as by a power switch, at the n-th call of one function of os.
KILLED = """
import os, signal, sys
from cdpo.files import write_atomic
from cdpo.runs import RunFolder
function, count = sys.argv[1], int(sys.argv[2])
real = getattr(os, function)
def deadly(*arguments, **keywords):
    global count
    count -= 1
    if count == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments, **keywords)
setattr(os, function, deadly)
"""


@pytest.mark.parametrize(
    ("function", "count", "left"), [("fsync", 1, "old"), ("replace", 1, "old"), ("fsync", 2, "new")]
)
def test_a_kill_during_write_atomic_leaves_a_whole_file(tmp_path, function, count, left):
    path = tmp_path / "file"
    path.write_text("old" * 1000)
    child = run_child(KILLED + "write_atomic(sys.argv[3], 'new' * 5000)", function, count, path)
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert path.read_text() == {"old": "old" * 1000, "new": "new" * 5000}[left]


def test_what_a_kill_left_half_written_is_swept_and_nothing_else(tmp_path):
    run = RunFolder.create(tmp_path / "run", {"a": 1})
    (run.path / "checkpoints").mkdir()
    places = [run.path, run.figures, run.path / "checkpoints"]
    for place in places:
        child = run_child(KILLED + "write_atomic(sys.argv[3], 'new')", "replace", 1, place / "file")
        assert child.returncode == -signal.SIGKILL, child.stderr
        assert len(list(place.glob(".cdpo-*.tmp"))) == 1
    name = f".cdpo-{'0' * 32}.tmp"
    mine = [run.path / ".cdpo-notes.tmp", run.path / name[1:], run.path / f"{name}.txt", tmp_path / name]
    for path in mine:
        path.write_text("mine")
    (run.path / name).mkdir()  # no file, so none of ours
    kept = {*mine[:3], *places[1:], run.path / "config.json", run.path / ".lock", run.path / name}
    for _ in range(2):
        with run.writing():
            assert set(run.path.rglob("*")) == kept and mine[3].exists()


@pytest.mark.parametrize(("function", "count"), [("fsync", 1), ("replace", 1), ("fsync", 2), ("rename", 1)])
def test_a_kill_during_create_leaves_no_run_and_the_name_free(tmp_path, function, count):
    path = tmp_path / "runs" / "one"
    child = run_child(KILLED + "RunFolder.create(sys.argv[3], {'a': 1})", function, count, path)
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert not path.exists()
    assert RunFolder.create(path, {"a": 2}).config["a"] == 2


def test_a_kill_right_after_create_leaves_a_whole_run(tmp_path):
    path = tmp_path / "one"
    child = run_child(KILLED + "RunFolder.create(sys.argv[3], {'a': 1})", "fsync", 3, path)
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert RunFolder.open(path).config["a"] == 1


def test_write_atomic_replaces_and_leaves_nothing_else(tmp_path):
    for data in ("text é", b"\x00bytes"):
        write_atomic(tmp_path / "file", data)
        assert (tmp_path / "file").read_bytes() == (data.encode() if isinstance(data, str) else data)
    assert os.listdir(tmp_path) == ["file"]


def test_write_atomic_keeps_the_old_file_and_removes_its_own_on_failure(tmp_path, monkeypatch):
    write_atomic(tmp_path / "file", "old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomic(tmp_path / "file", "new")
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "old"


@pytest.mark.skipif(os.name != "posix", reason="needs a umask")
def test_files_follow_the_umask(tmp_path):
    old = os.umask(0o022)
    try:
        write_atomic(tmp_path / "file", "x")
    finally:
        os.umask(old)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644


def test_create_then_open(tmp_path):
    config = {"env": "chain", "sizes": [8, 10], "cdpo": {"eta": 0.1}}
    made = RunFolder.create(tmp_path / "a" / "b" / "run", config)
    assert RunFolder.open(str(made.path)) == made
    assert made.config == {"format": runs.FORMAT, **config}
    assert list(made.config) == ["format", "env", "sizes", "cdpo"]
    assert os.listdir(made.path) == ["config.json"]
    assert os.listdir(made.path.parent) == ["run"]
    assert made.figures.is_dir() and made.figures == made.path / "figures"


@pytest.mark.parametrize("refuse", [check_free, lambda path: RunFolder.create(path, {})])
def test_a_path_that_cannot_become_a_run_is_refused(tmp_path, monkeypatch, refuse):
    def refused(path):
        with pytest.raises(UserError) as caught:
            refuse(path)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("mine")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("empty", "file", "dangling"):
        assert "already exists; choose another" in refused(tmp_path / name)
    assert "Not a directory" in refused(tmp_path / "file" / "run")
    assert "name too long" in refused(tmp_path / ("x" * 5000))
    # The super-user may write anywhere, so the answer of the system is set by hand.
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "is not writable" in refused(tmp_path / "new" / "run")
    assert sorted(os.listdir(tmp_path)) == ["dangling", "empty", "file"]
    assert (tmp_path / "file").read_text() == "mine"


def test_check_free_creates_nothing(tmp_path):
    check_free(tmp_path / "not" / "yet" / "run")
    assert os.listdir(tmp_path) == []


def test_create_names_what_the_system_refuses(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(UserError, match="Permission denied; choose another"):
        RunFolder.create(tmp_path / "run", {})
    assert os.listdir(tmp_path) == []


def test_a_config_that_is_no_json_leaves_nothing(tmp_path):
    with pytest.raises(TypeError):
        RunFolder.create(tmp_path / "run", {"a": object()})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("content", [b"", b'{"a": 1', b"[1, 2]", b"\xff\xfe", b"[" * 100_000])
def test_open_refuses_a_damaged_config(tmp_path, content):
    run = RunFolder.create(tmp_path / "run", {"a": 1})
    (run.path / "config.json").write_bytes(content)
    with pytest.raises(UserError, match=r"config\.json' is damaged"):
        RunFolder.open(run.path)


def test_open_refuses_what_is_no_run(tmp_path):
    with pytest.raises(UserError, match="no such folder"):
        RunFolder.open(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"no config\.json"):
        RunFolder.open(tmp_path)


def test_a_folder_of_a_newer_format_asks_for_a_newer_library_and_one_that_tells_none_is_of_the_first(tmp_path):
    run = RunFolder.create(tmp_path / "run", {"a": 1})
    (run.path / "config.json").write_text('{"a": 1}')
    (run.path / "metrics.jsonl").write_text('{"b": 2}\n')
    assert RunFolder.open(run.path).config == {"a": 1} and run.records() == [{"b": 2}]
    for told, complaint in [(runs.FORMAT + 1, "install a newer cdpo"), (0, "damaged"), ("1", "damaged")]:
        (run.path / "config.json").write_text(json.dumps({"format": told}))
        with pytest.raises(UserError, match=complaint) as caught:
            RunFolder.open(run.path)
        assert str(caught.value).isprintable()


def test_json_is_strict(tmp_path):
    run = RunFolder.create(tmp_path / "run", {})
    run.write_summary(
        {
            "nan": math.nan,
            "array": np.array([[1.0, np.inf], [-np.inf, 2.0]], np.float32),
            "scalars": (np.int64(3), np.float32(0.5), np.float64("nan"), np.bool_(True), np.array(7)),
            "path": tmp_path,
            8: None,
        }
    )

    def reject(name):
        raise AssertionError(f"{name} is not JSON")

    text = (run.path / "summary.json").read_text()
    assert json.loads(text, parse_constant=reject) == run.summary | {"crc32": text[-12:-4]}
    assert run.summary == {
        "nan": None,
        "array": [[1.0, None], [None, 2.0]],
        "scalars": [3, 0.5, None, True, 7],
        "path": str(tmp_path),
        "8": None,
    }
    assert text.startswith('{\n  "nan": null,\n')


def test_jax_arrays_of_every_precision_are_json(tmp_path):
    import jax.numpy as jnp

    run = RunFolder.create(tmp_path / "run", {})
    run.append({"f32": jnp.ones(2), "bf16": jnp.array([1.5, jnp.nan], jnp.bfloat16), "one": jnp.bfloat16(2)})
    assert run.records() == [{"f32": [1.0, 1.0], "bf16": [1.5, None], "one": 2.0}]


def test_a_run_without_a_summary_has_not_finished(tmp_path):
    with pytest.raises(UserError, match="has not finished"):
        _ = RunFolder.create(tmp_path / "run", {}).summary


def test_records_come_back_in_order(tmp_path):
    run = RunFolder.create(tmp_path / "run", {})
    assert run.records() == []
    for k in range(3):
        run.append({"episode": k, "return": math.nan, "line": "a\nb\u2028c"})
    assert run.records() == [{"episode": k, "return": None, "line": "a\nb\u2028c"} for k in range(3)]


def test_a_torn_file_gives_the_whole_records_and_goes_on(tmp_path):
    run = RunFolder.create(tmp_path / "run", {})
    records = [{"episode": k} for k in range(3)]
    for record in records:
        run.append(record)
    path = run.path / "metrics.jsonl"
    whole = path.read_bytes()
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        kept = records[: whole[:size].count(b"\n")]
        assert run.records() == kept
        run.append({"episode": 99})
        assert run.records() == [*kept, {"episode": 99}]


def test_damage_that_is_no_crash_is_named(tmp_path):
    run = RunFolder.create(tmp_path / "run", {})
    path, lines = run.path / "metrics.jsonl", [sealed({"a": number}, place=number) for number in range(3)]
    path.write_text(lines[0] + "nonsense\n")
    assert run.records() == [{"a": 0}]  # torn, as far as one can see
    run.write_summary({})
    with pytest.raises(UserError, match="line 2: it has no checksum"):  # in a run that has finished nothing is
        run.records()
    path.write_text(lines[0] + "nonsense\n" + lines[2])
    with pytest.raises(UserError, match="line 2"):
        run.records()


@pytest.mark.parametrize("damage", ["doubled", "lost", "exchanged", "cut"])
def test_lines_that_are_whole_and_not_in_their_places_are_damage(tmp_path, damage):
    run = RunFolder.create(tmp_path / "run", {})
    run.extend([{"a": number} for number in range(3)])
    run.write_summary({"b": 1})
    assert run.summary == {"b": 1, "lines": 3}
    path = run.path / "metrics.jsonl"
    first, second, third = path.read_text().splitlines(keepends=True)
    found = {
        "doubled": first + second + third + first + second + third,
        "lost": first + third,
        "exchanged": second + first + third,
        "cut": first + second,
    }
    path.write_text(found[damage])
    with pytest.raises(UserError, match=r"metrics\.jsonl' is damaged"):
        run.records()
    path.write_text(first + second + third)
    assert run.records() == [{"a": number} for number in range(3)]


def test_appends_from_threads_are_all_there(tmp_path):
    run = RunFolder.create(tmp_path / "run", {})

    def work(cell):
        for k in range(20):
            run.append({"cell": cell, "k": k})

    threads = [threading.Thread(target=work, args=(cell,)) for cell in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for cell in range(4):
        assert [record["k"] for record in run.records() if record["cell"] == cell] == list(range(20))


def test_versions_and_hardware_are_json():
    found = {"versions": runs.versions(), "hardware": runs.hardware()}
    assert json.loads(json.dumps(found)) == found
    assert {"cdpo", "python", "jax", "jaxlib", "numpy", "equinox"} <= set(found["versions"])
    assert {"platform", "machine", "cpus", "backend", "device"} <= set(found["hardware"])


def test_run_folders_do_not_wait_for_jax():
    child = run_child("import sys, cdpo.runs; sys.exit('jax' in sys.modules)")
    assert child.returncode == 0, child.stderr
