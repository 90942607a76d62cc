"""Imports go one way: whoever imports another, also inside a function, is never imported by it in turn."""

import ast
import importlib
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"


def modules(root: Path) -> dict[str, Path]:
    """Every module of the package by its name."""
    paths = {path.relative_to(root).with_suffix(""): path for path in root.glob("cdpo/**/*.py")}
    return {".".join(path.parts).removesuffix(".__init__"): where for path, where in paths.items()}


def imported(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """The modules that a file imports anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            names = [f"{node.module}.{each.name}" for each in node.names]
        for name in names:  # of which the last part may be no module
            found = next((each for each in (name, name.rpartition(".")[0]) if each in known), None)
            if found is not None:
                yield found


def room(name: str) -> str:
    """The package or the module right under cdpo that a module belongs to."""
    return ".".join(name.split(".")[:2])


def circle(graph: dict[str, set[str]]) -> list[str] | None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return None


def graphs(root: Path) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Who imports whom, among modules and among rooms."""
    known = modules(root)
    inner = {name: set(imported(path, known)) - {name} for name, path in known.items()}
    outer: dict[str, set[str]] = {}
    for name, others in inner.items():
        outer.setdefault(room(name), set()).update(room(other) for other in others if room(other) != room(name))
    return inner, outer


def test_no_modules_and_no_rooms_import_each_other_in_a_circle():
    modules, rooms = graphs(SRC)
    assert len(rooms) > 10 and "cdpo.runs" in rooms["cdpo.training"]
    assert circle(modules) is None
    assert circle(rooms) is None


@pytest.mark.parametrize("late", ["from cdpo.cli import parse", "def run():\n    import cdpo.cli"])
def test_a_circle_would_be_found(tmp_path, late):
    files = {"__init__": "", "cli": "from cdpo.commands import each", "commands/__init__": "", "commands/each": late}
    for name, text in files.items():
        path = tmp_path / "cdpo" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    modules, rooms = graphs(tmp_path)
    assert set(circle(modules)) == {"cdpo.cli", "cdpo.commands.each"}
    assert set(circle(rooms)) == {"cdpo.cli", "cdpo.commands"}


PROGRAMS = sorted([*(SRC.parent / "tools").glob("*.py"), *(SRC.parent / "benchmarks").glob("*.py")])


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_programs_outside_the_package_import_what_there_is(program):
    for node in ast.walk(ast.parse(program.read_text())):
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "cdpo":
            home = importlib.import_module(str(node.module))
            for each in node.names:
                assert hasattr(home, each.name) or f"{node.module}.{each.name}" in modules(SRC), each.name
