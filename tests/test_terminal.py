import pytest

from cdpo.terminal import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("cdpo train pendulum --out 'my run'", "cdpo train pendulum --out 'my run'"),
        ("Δ of 漢 and é", "Δ of 漢 and é"),
        ("\x1b[31mred\x1b]0;title\x07", r"\x1b[31mred\x1b]0;title\x07"),
        ("\x9b2J of eight bits", r"\x9b2J of eight bits"),
        ("over\rwritten\nby\ta\x0bline\x0c\x85", r"over\rwritten\nby\ta\x0bline\x0c\x85"),
        ("back\b\b\x7f", r"back\x08\x08\x7f"),
        ("one\u2028two\u2029", r"one\u2028two\u2029"),
        ("\u202egnp.exe \u2066and\u2069", r"\u202egnp.exe \u2066and\u2069"),
        ("un\u200bseen\ufeff\U000e0041", r"un\u200bseen\ufeff\U000e0041"),
        ("half \ud800", r"half \ud800"),
    ],
)
def test_signs_that_a_terminal_obeys_or_hides_are_written_out(text, shown):
    assert printable(text) == shown


def test_every_sign_is_safe_on_one_line():
    shown = [printable(chr(code)) for code in range(0x110000)]
    assert all(each.isprintable() and len(each.splitlines()) == 1 for each in shown)
