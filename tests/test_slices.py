"""Slow tests that run at a commit."""

import subprocess
import sys
from pathlib import Path

import pytest
import slices

ROOT = Path(__file__).parents[1]
SECONDS = {f"test_{number}": float(1 + number % 7) for number in range(40)}
COMMITS = [f"{number:040x}" for number in range(slices.TURNS)]


def test_a_slice_takes_the_time_there_is_and_no_more():
    for number, commit in enumerate(COMMITS):
        taken = slices.chosen(SECONDS, commit, number, 60.0, SECONDS)
        assert 60.0 - min(SECONDS.values()) < sum(SECONDS[test] for test in taken) <= 60.0
    assert slices.chosen(SECONDS, COMMITS[0], 0, 1e6, SECONDS) == set(SECONDS)


def test_beyond_those_whose_turn_it_is_they_are_the_commits_own():
    first, again, other = (slices.chosen(SECONDS, commit, 3, 60.0, SECONDS) for commit in (COMMITS[0], *COMMITS[:2]))
    assert first == again != other
    assert slices.chosen(reversed(SECONDS), COMMITS[0], 3, 60.0, SECONDS) == first


def test_all_have_their_turn_in_a_tenth_of_the_time():
    tenth = sum(SECONDS.values()) / slices.TURNS + max(SECONDS.values())
    taken = [slices.chosen(SECONDS, COMMITS[0], turn, tenth, SECONDS) for turn in range(slices.TURNS)]
    assert set().union(*taken) == set(SECONDS)


def test_what_nobody_has_timed_runs_before_all_else():
    taken = slices.chosen([*SECONDS, "test_new"], COMMITS[0], 0, slices.UNKNOWN + 1.0, SECONDS)
    assert "test_new" in taken and len(taken) > 1
    assert "test_new" not in slices.chosen([*SECONDS, "test_new"], COMMITS[0], 0, slices.UNKNOWN - 1.0, SECONDS)


def test_ten_landings_see_every_test():
    seconds = slices.recorded()
    taken = [slices.chosen(seconds, commit, turn, slices.BUDGET, seconds) for turn, commit in enumerate(COMMITS)]
    assert set().union(*taken) == set(seconds)


def test_no_record_is_of_a_test_that_is_gone():
    for test in slices.recorded():
        file, function = test.split("[")[0].split("::")
        assert f"def {function}(" in (ROOT / file).read_text()


def collected(*options):
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *options, "tests/test_cli.py"]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return {line.split("::")[1] for line in lines if "::" in line}


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the repository's history")
def test_a_slice_has_slow_tests_alone_and_one_case_of_some_is_quick():
    everything, some = collected("--all"), collected("--slice", "HEAD", "--seconds", "1e6")
    goes_on = "test_an_interrupted_run_goes_on_and_ends_as_if_nothing_had_happened"
    assert {test for test in everything if goes_on in test} == {f"{goes_on}[{name}]" for name in ("SIGINT", "SIGKILL")}
    assert {test for test in some if goes_on in test} == {f"{goes_on}[SIGINT]"}
    assert some < everything
