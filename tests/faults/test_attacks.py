"""The attacks on run folders (tools/faults.py): a few trials of each, and that they find what they are there for."""

import csv
import importlib
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tools" / "faults.py"
SHARE = 0.01  # of a whole run
QUICK = ("crashes", "errors", "damage", "strangers", "races")


@pytest.fixture(scope="module")
def faults(script):
    return script(SCRIPT)


@pytest.fixture(scope="module")
def attack(tmp_path_factory):
    """The answer of the command, in a process of its own: those that compute do not take kindly to forks."""

    def attack(*words, mistake=""):
        planted = f"import runpy, sys\nsys.argv[1:] = {list(words)!r}\n{mistake}\n"
        program = f"{planted}runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "JAX_PLATFORMS": "cpu"}
        environment["XDG_CACHE_HOME"] = str(tmp_path_factory.getbasetemp().parent / "children")
        return subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=900
        )

    return attack


@pytest.fixture(scope="module")
def some(attack):
    """A few trials of every attack that takes no time."""
    return attack(*QUICK, "--share", str(SHARE), "--seed", "0")


@pytest.mark.parametrize("name", QUICK)
def test_a_few_trials_fail_nowhere(some, name):
    assert re.search(rf"^{name} +\d+ +0$", some.stdout, re.MULTILINE), some.stdout + some.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [("kills", 2), ("hostile", 40), *((name, 60) for name in QUICK)])
def test_more_trials_fail_nowhere(attack, name, count):
    ended = attack(name, "--count", str(count), "--seed", "1000")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(rf"^{name} +{count} +0$", ended.stdout, re.MULTILINE)


MISTAKES = {
    "a checkpoint that is not put on the disk": (
        "crashes",
        "import cdpo.files, cdpo.training.log\ncdpo.files.sync = cdpo.training.log.sync = lambda file: file.flush()",
    ),
    "names that are not put on the disk": ("crashes", "import cdpo.files\ncdpo.files.sync_folder = lambda path: None"),
    "a lock that everybody has": ("races", "import cdpo.lock\ncdpo.lock.Lock._taken = lambda self, descriptor: True"),
    "links that are followed": ("strangers", "import cdpo.files\ncdpo.files._check_kind = lambda path: None"),
    "sums that nobody looks at": (
        "damage",
        "import re, cdpo.runs\nreal = cdpo.runs.unsealed\n"
        "bare = lambda data: re.sub(rb': \"[0-9a-f]{8}\"', b': null', data)\n"
        "cdpo.runs.unsealed = lambda data, **how: real(bare(data), **how)",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_storage_is_found(attack, mistake):
    name, planted = MISTAKES[mistake]
    count = 400 if name == "damage" else 60
    ended = attack(name, "--count", str(count), "--seed", "60", mistake=planted)
    assert ended.returncode == 1, ended.stderr
    assert f"{name} --count 1 --seed" in ended.stdout


@pytest.fixture
def disk(faults, tmp_path):
    """A disk that follows what this process writes, and loses as much as it can when the power goes."""
    calls, disks = importlib.import_module("attacks.calls"), importlib.import_module("attacks.disk")

    class Unlucky(random.Random):
        def randint(self, low, high):
            return low

    made = disks.Disk(Unlucky())
    with calls.Calls(tmp_path, lambda call, number: call.make(), made).entered():
        yield made


def test_what_is_on_the_disk_outlives_the_power_and_what_is_not_does_not(tmp_path, disk):
    folder = os.open(tmp_path, os.O_RDONLY)
    with open(tmp_path / "kept", "wb") as file:
        file.write(b"kept")
        file.flush()
        os.fsync(file.fileno())
        os.fsync(folder)
        file.write(b", and lost")
    (tmp_path / "lost").write_bytes(b"without a name on the disk")
    os.replace(tmp_path / "kept", tmp_path / "renamed")
    os.close(folder)
    disk.lose()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"kept": b"kept"}


def test_a_call_may_fail_when_half_of_it_is_made(faults, tmp_path):
    calls = importlib.import_module("attacks.calls")
    refused = calls.fail(1, 28, lasting=False, torn=True)
    with calls.Calls(tmp_path, refused).entered() as counted:
        file = open(tmp_path / "file", "wb", buffering=0)  # noqa: SIM115 - what its writing raises is asked for
        with pytest.raises(OSError, match="No space left"), file:
            file.write(b"12345678")
    assert counted.count == 2  # it was opened, and written
    assert (tmp_path / "file").read_bytes() == b"1234"


def test_the_table_says_how_a_failure_is_repeated(faults):
    tallies = [faults.Tally("crashes", 10, 1200, {31: "lost", 17: "torn"}), faults.Tally("races", 10, 200)]
    assert faults.table(tallies).splitlines() == [
        "attack   tried  failed  seed to repeat",
        "crashes  1,200  2       crashes --count 1 --seed 17",
        "races    200    0",
    ]


def test_totals_are_kept_of_a_commit_and_of_nothing_else(faults, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(faults, "TOTALS", tmp_path / "totals.csv")
    tallies = [faults.Tally("crashes", 10, 1200, {17: "torn"})]
    monkeypatch.setattr(faults, "_git", lambda *words: " M src/cdpo/runs.py")
    faults.keep(tallies)
    assert "not kept" in capsys.readouterr().err and not (tmp_path / "totals.csv").exists()
    monkeypatch.setattr(faults, "_git", lambda *words: "abc1234" if words[0] == "rev-parse" else "")
    faults.keep(tallies)
    assert (tmp_path / "totals.csv").read_text().partition(",")[2] == "abc1234,crashes,1200,1,10\n"


def test_the_kept_totals_have_the_columns_that_are_written(faults):
    head, *rows = faults.TOTALS.read_text().splitlines()
    assert tuple(head.split(",")) == faults.COLUMNS
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d,[0-9a-f]{7,40},[a-z]+,\d+,\d+,\d+", row) for row in rows)


def test_the_page_of_promises_tells_what_the_last_run_tried(faults):
    last = {row["attack"]: row for row in csv.DictReader(faults.TOTALS.read_text().splitlines())}
    page = (ROOT / "docs" / "promises.md").read_text()
    for attack in faults.ATTACKS:
        told = f"| {int(last[attack]['tried']):,} | {int(last[attack]['failed']):,} |"
        assert re.search(rf"^\| {attack} \|.*{re.escape(told)}$", page, re.MULTILINE), attack
