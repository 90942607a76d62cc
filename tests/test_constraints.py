"""The versions that are tested together are pinned, each in one place."""

import tomllib
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins(name):
    """Requirements of a file of constraints."""
    lines = (line.partition("#")[0].strip() for line in (ROOT / name).read_text().splitlines())
    return [Requirement(line) for line in lines if line]


def needed(lines, extras=("",)):
    """Requirements among `lines` that count here."""
    told = map(Requirement, lines)
    return [each for each in told if not each.marker or any(each.marker.evaluate({"extra": name}) for name in extras)]


def test_all_that_a_development_install_needs_is_pinned():
    pinned = {canonicalize_name(pin.name) for pin in needed(map(str, pins("constraints.txt")))}
    seen, open_ = set(), [Requirement("cdpo[dev]")]
    while open_:
        each = open_.pop()
        name, extras = canonicalize_name(each.name), frozenset(each.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        if name == "cdpo":
            optional = PROJECT["optional-dependencies"]
            open_ += needed([*PROJECT["dependencies"], *(line for extra in extras for line in optional[extra])])
        else:
            open_ += needed(requires(name) or [], {"", *extras})
    assert {name for name, _ in seen} - {"cdpo"} <= pinned


def test_nothing_is_pinned_to_a_nightly_or_another_version_before_its_release_but_what_peers_alone_need():
    for pin in pins("constraints.txt"):
        assert "nightly" not in pin.name and not pin.specifier.prereleases, pin


def test_what_peers_alone_need_is_pinned_nowhere_else():
    main, peers = ({canonicalize_name(pin.name) for pin in pins(f"constraints{part}.txt")} for part in ("", "-peers"))
    assert not main & peers
    assert {canonicalize_name(each.name) for each in needed(PROJECT["optional-dependencies"]["peers"])} <= peers
