"""Slow tests that run at a commit."""

import subprocess
import sys
from pathlib import Path

import pytest
import slices

ROOT = Path(__file__).parents[1]
SECONDS = {f"test_{number}": float(1 + number % 7) for number in range(40)}
COMMITS = [f"{number:040x}" for number in range(10)]


def test_a_slice_takes_the_time_there_is_and_no_more():
    for commit in COMMITS:
        taken = slices.chosen(SECONDS, commit, 60.0, SECONDS)
        assert 60.0 - min(SECONDS.values()) < sum(SECONDS[test] for test in taken) <= 60.0
    assert slices.chosen(SECONDS, COMMITS[0], 1e6, SECONDS) == set(SECONDS)


def test_it_is_the_commits_and_no_accident():
    first, again, other = (slices.chosen(SECONDS, commit, 60.0, SECONDS) for commit in (COMMITS[0], *COMMITS[:2]))
    assert first == again != other
    assert slices.chosen(reversed(SECONDS), COMMITS[0], 60.0, SECONDS) == first


def test_what_nobody_has_timed_runs_before_all_else():
    taken = slices.chosen([*SECONDS, "test_new"], COMMITS[0], slices.UNKNOWN + 1.0, SECONDS)
    assert "test_new" in taken and len(taken) > 1
    assert "test_new" not in slices.chosen([*SECONDS, "test_new"], COMMITS[0], slices.UNKNOWN - 1.0, SECONDS)


def test_ten_commits_see_every_test():
    seconds = slices.recorded()
    seen = set().union(*(slices.chosen(seconds, commit, slices.BUDGET, seconds) for commit in COMMITS))
    assert seen == set(seconds)


def test_no_record_is_of_a_test_that_is_gone():
    for test in slices.recorded():
        file, function = test.split("[")[0].split("::")
        assert f"def {function}(" in (ROOT / file).read_text()


@pytest.mark.slow
def test_a_slice_runs_slow_tests_alone_and_one_case_of_some_is_quick():
    file = "tests/test_cli.py"

    def collected(*options):
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *options, file]
        lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
        return {line.split("::")[1] for line in lines if "::" in line}

    everything, some = collected("--all"), collected("--slice", "0" * 40, "--seconds", "1e6")
    assert {name for name in everything if "interrupted_run_goes_on" in name} == {
        f"test_an_interrupted_run_goes_on_and_ends_as_if_nothing_had_happened[{name}]" for name in ("SIGINT", "SIGKILL")
    }
    assert "test_an_interrupted_run_goes_on_and_ends_as_if_nothing_had_happened[SIGINT]" in some
    assert "test_an_interrupted_run_goes_on_and_ends_as_if_nothing_had_happened[SIGKILL]" not in some
    assert some < everything
