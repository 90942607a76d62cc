"""The mistakes that are planted to see what the tests catch (tools/mutants.py)."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "cdpo"


@pytest.fixture(scope="module")
def mutants(script):
    return script(ROOT / "tools" / "mutants.py")


def test_every_mistake_has_its_place_in_the_source_and_tests_that_exist(mutants):
    for mutant in mutants.read():
        source = (PACKAGE / mutant.file).read_text(encoding="utf-8")
        assert mutant.planted(source) != source
        compile(mutant.planted(source), mutant.file, "exec")
        for test in mutant.tests:
            file, _, name = test.partition("::")
            assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text(encoding="utf-8"), mutant.name


def test_no_package_is_spared_and_few_survivors_are_known(mutants):
    planted = {str(Path(mutant.file).parent) for mutant in mutants.read()}
    packages = {str(path.parent.relative_to(PACKAGE)) for path in PACKAGE.rglob("__init__.py")}
    assert packages <= planted
    assert sum(bool(mutant.survives) for mutant in mutants.read()) <= 2


SUM = "def total(values):\n    return sum(values) + 0\n"
TEST = "import cdpo\n\ndef test_total():\n    assert cdpo.total([1, 2]) == 3\n"
SLOW = "def pytest_addoption(parser):\n    parser.addoption('--all', action='store_true')\n"
ENTRY = '[{name}]\nfile = "__init__.py"\nold = "{old}"\nnew = "{new}"\ntests = ["tests/test_total.py"]\n{more}\n'


@pytest.fixture
def small(mutants, tmp_path, capsys):
    """What the program says of a library of one function, and its exit code."""
    tests = {"tests/test_total.py": TEST, "tests/conftest.py": SLOW}
    files = {"src/cdpo/__init__.py": SUM, **tests, "tools/slices.py": "", "pyproject.toml": ""}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    def run(words, *entries):
        table = tmp_path / "mutants.toml"
        table.write_text("".join(ENTRY.format(**{"more": "", **entry}) for entry in entries))
        code = mutants.main(words, table, tmp_path)
        assert (tmp_path / "src/cdpo/__init__.py").read_text() == SUM
        return code, "".join(capsys.readouterr())

    return run


CAUGHT = {"name": "caught", "old": "sum(values)", "new": "max(values)"}
MISSED = {"name": "missed", "old": "+ 0", "new": "- 0"}


def test_what_a_test_catches_is_killed_and_what_none_catches_survives(small):
    code, said = small(["--jobs", "2"], CAUGHT, MISSED)
    assert code == 1
    assert "1 of 2 killed" in said
    assert "SURVIVED missed (__init__.py): no reason is known" in said


def test_a_survivor_whose_reason_is_known_is_no_failure(small):
    code, said = small(["missed"], CAUGHT, {**MISSED, "more": 'survives = "zero is zero"'})
    assert code == 0
    assert "SURVIVED missed (__init__.py): zero is zero" in said and "caught" not in said


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({**CAUGHT, "old": "product(values)"}, "caught: its text occurs 0 times"),
        ({**CAUGHT, "new": "sum(values"}, "pytest has no verdict"),
    ],
)
def test_a_table_that_does_not_fit_is_told(small, entry, why):
    code, said = small([], entry)
    assert code == 2 and why in said
