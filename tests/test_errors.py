import pytest

from cdpo.errors import UserError, unknown


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("psrll", "unknown agent 'psrll'; did you mean 'psrl'? (known: cdpo, psrl, Greedy)"),
        ("CDPO", "unknown agent 'CDPO'; did you mean 'cdpo'? (known: cdpo, psrl, Greedy)"),
        ("greedy", "unknown agent 'greedy'; did you mean 'Greedy'? (known: cdpo, psrl, Greedy)"),
        ("zzz", "unknown agent 'zzz' (known: cdpo, psrl, Greedy)"),
    ],
)
def test_unknown_names_the_nearest(name, message):
    error = unknown("agent", name, (each for each in ("cdpo", "psrl", "Greedy")))
    assert isinstance(error, UserError)
    assert str(error) == message


def test_unknown_is_one_line_whatever_was_typed():
    assert "\n" not in str(unknown("agent", "cd\npo", ["cdpo"]))


def test_unknown_without_any_known():
    assert str(unknown("task", "x", [])) == "unknown task 'x' (known: none)"
