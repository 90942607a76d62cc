"""Slow tests that run at a commit."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import slices

ROOT = Path(__file__).parents[1]
TIMED = slices.record({f"tests/test_{n % 4}.py::test_{n}": float(1 + n % 7) for n in range(40)}, {})
NEW = [f"tests/test_new.py::test_{n}" for n in range(20)]
COMMITS = [f"{number:040x}" for number in range(slices.TURNS)]


def seconds(tests):
    return sum(TIMED[test][1] for test in tests)


def test_a_slice_takes_the_time_there_is_and_no_more():
    for turn, commit in enumerate(COMMITS):
        assert 59.0 < seconds(slices.chosen(TIMED, commit, turn, 60.0, TIMED)) <= 60.0
    assert slices.chosen(TIMED, COMMITS[0], 0, 1e6, TIMED) == set(TIMED)


def test_beyond_those_whose_turn_it_is_they_are_the_commits_own():
    first, again, other = (slices.chosen(TIMED, commit, 3, 60.0, TIMED) for commit in (COMMITS[0], *COMMITS[:2]))
    assert first == again != other
    assert slices.chosen([*reversed(TIMED)], COMMITS[0], 3, 60.0, TIMED) == first
    assert first & other >= {test for test, (turn, _) in TIMED.items() if turn == 3}


WORKER = """
import slices
timed = {f"tests/test_{n}.py::test": (n == 0, 0.1 + n / 7) for n in range(60)}
budget = sum(took for _, took in timed.values())  # for the last one it is just enough, or not
print(sorted(slices.chosen(timed, "0", 0, budget, timed)))
"""


def test_every_worker_chooses_the_same():
    def choice(seed):
        environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": str(ROOT / "tools")}
        return subprocess.run([sys.executable, "-c", WORKER], env=environment, capture_output=True, check=True).stdout

    assert len({choice(seed) for seed in range(12)}) == 1


def test_ten_landings_see_every_test_and_those_that_nobody_has_timed_yet():
    tests = [*TIMED, *NEW]
    budget = seconds(TIMED) / slices.TURNS + 7 + len(NEW) * slices.UNKNOWN
    seen = [slices.chosen(tests, COMMITS[0], turn, budget, TIMED) for turn in range(slices.TURNS)]
    assert set().union(*seen) == set(tests)
    # Where there is time beyond the turn's own, what nobody has timed comes first.
    assert all(set(NEW) <= taken for taken in seen)


def test_turns_that_do_not_fit_into_the_time_are_told():
    with pytest.raises(ValueError, match="run: make durations"):
        slices.chosen(TIMED, COMMITS[0], 0, 5.0, TIMED)


def test_the_turns_that_are_recorded_fit_into_the_time_that_there_is():
    durations = slices.recorded()
    for turn in range(slices.TURNS):
        assert sum(took for whose, took in durations.values() if whose == turn) <= slices.BUDGET


def test_a_record_keeps_turns_and_other_files_and_forgets_tests_that_are_gone():
    timed = {test: 2 * took for test, (_, took) in TIMED.items() if test.startswith("tests/test_1.py")}
    gone = timed.popitem()[0]
    after = slices.record({**timed, "tests/test_1.py::test_new": 5.0}, TIMED)
    assert after.keys() == TIMED.keys() - {gone} | {"tests/test_1.py::test_new"}
    assert all(after[test][0] == TIMED[test][0] for test in TIMED if test != gone)
    assert all(after[test][1] == took for test, took in timed.items())
    assert {test: each for test, each in after.items() if "test_1.py" not in test} == {
        test: each for test, each in TIMED.items() if "test_1.py" not in test
    }


def test_without_a_history_there_is_a_turn_as_well(tmp_path, monkeypatch):
    monkeypatch.setattr(slices, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    commit, turn = slices.here()
    assert commit.count("-") == 2 and 0 <= turn < slices.TURNS


def test_no_record_is_of_a_test_that_is_gone():
    for test in slices.recorded():
        file, function = test.split("[")[0].split("::")
        assert f"def {function}(" in (ROOT / file).read_text()


def test_workers_take_one_thread_each():
    if "PYTEST_XDIST_WORKER" not in os.environ:
        pytest.skip("there are no workers")
    assert "--xla_cpu_multi_thread_eigen=false" in os.environ["XLA_FLAGS"]


def collected(*options):
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *options, "tests/test_cli.py"]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return {line.split("::")[1] for line in lines if "::" in line}


@pytest.mark.slow
def test_a_slice_has_slow_tests_alone_and_one_case_of_some_is_quick():
    everything, some = collected("--all"), collected("--slice", "--seconds", "1e6")
    goes_on = "test_an_interrupted_run_goes_on_and_ends_as_if_nothing_had_happened"
    assert {test for test in everything if goes_on in test} == {f"{goes_on}[{name}]" for name in ("SIGINT", "SIGKILL")}
    assert {test for test in some if goes_on in test} == {f"{goes_on}[SIGINT]"}
    assert some < everything
