"""Writes hashes.txt: the digests of the published files of every version that a development install is pinned to.

    .venv/bin/python tools/hashes.py

It asks the package index that pip is configured with, and keeps names, versions and digests, but no address. Run it
whenever a pin in constraints.txt changes; `make venv HASHES=1` then takes no file but these.
"""

import re
import sys
import tomllib
from collections.abc import Callable, Iterable
from functools import partial
from html.parser import HTMLParser
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).parent.parent
PYTHONS = (11, 12, 13)  # minor versions of 3
_PLATFORM = re.compile(r"any|manylinux\w*_(x86_64|aarch64)|macosx_\d+_\d+_(arm64|universal2)")
_EDITABLE = "editables"  # what the build asks for itself when an install is to be editable
_HEADER = """\
# The digests of what `make venv HASHES=1` installs: wheels for CPython 3.11 to 3.13 on Linux and macOS.
# Made from constraints.txt by tools/hashes.py.
"""


def pins(name: str = "constraints.txt") -> list[Requirement]:
    """Requirements of a file of constraints."""
    lines = (line.partition("#")[0].strip() for line in (ROOT / name).read_text().splitlines())
    return [Requirement(line) for line in lines if line]


def needed(lines: Iterable[str], extras: Iterable[str] = ("",)) -> list[Requirement]:
    """Requirements among `lines` that count here."""
    told = map(Requirement, lines)
    return [each for each in told if not each.marker or any(each.marker.evaluate({"extra": name}) for name in extras)]


def installed() -> set[str]:
    """Names of all that a development install has, the build's own requirements among them."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = told["project"]
    open_ = [Requirement("cdpo[dev]"), *map(Requirement, told["build-system"]["requires"]), Requirement(_EDITABLE)]
    seen = set()
    while open_:
        each = open_.pop()
        name, extras = canonicalize_name(each.name), frozenset(each.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        if name == "cdpo":
            optional = project["optional-dependencies"]
            open_ += needed([*project["dependencies"], *(line for extra in extras for line in optional[extra])])
        else:
            open_ += needed(requires(name) or [], {"", *extras})
    return {name for name, _ in seen} - {"cdpo"}


def fits(filename: str, pin: Requirement) -> bool:
    """Whether a file is a wheel of the pinned version, for a Python and a platform that are installed on."""
    if not filename.endswith(".whl"):
        return False
    try:
        _, version, _, tags = parse_wheel_filename(filename)
    except ValueError:  # names from before there were rules for them
        return False
    kinds = {kind for minor in PYTHONS if _counts(pin, minor) for kind in _kinds(minor)}
    return version in pin.specifier and any(
        (tag.interpreter, tag.abi) in kinds and _PLATFORM.fullmatch(tag.platform) for tag in tags
    )


def _counts(pin: Requirement, minor: int) -> bool:
    return pin.marker is None or pin.marker.evaluate({"python_version": f"3.{minor}"})


def _kinds(minor: int) -> set[tuple[str, str]]:
    """Interpreter and ABI of what Python 3.`minor` can install."""
    here = {"python_version": (3, minor), "platforms": ["any"]}
    tags = [*cpython_tags(**here, abis=[f"cp3{minor}"]), *compatible_tags(**here, interpreter=f"cp3{minor}")]
    return {(tag.interpreter, tag.abi) for tag in tags}


class _Links(HTMLParser):
    """The files of an index's page, with their SHA-256."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        address, _, digest = (dict(attributes).get("href") or "").partition("#sha256=")
        if tag == "a" and re.fullmatch("[0-9a-f]{64}", digest):
            self.found[address.rpartition("/")[2]] = digest


def links(page: str) -> dict[str, str]:
    """The SHA-256 of each file that an index's page names."""
    parser = _Links()
    parser.feed(page)
    return parser.found


def written(page_of: Callable[[str], str], names: set[str]) -> str:
    """hashes.txt, from the index's page of each name."""
    lines = [_HEADER]
    for pin in pins():
        if canonicalize_name(pin.name) not in names:
            continue
        files = links(page_of(canonicalize_name(pin.name)))
        digests = sorted({digest for name, digest in files.items() if fits(name, pin)})
        if not digests:
            raise SystemExit(f"the index has no wheel of {pin}; pin a version that has one")
        lines.append(" \\\n    ".join([str(pin), *(f"--hash=sha256:{digest}" for digest in digests)]) + "\n")
    return "".join(lines)


def _page(index: str, session, name: str) -> str:
    answer = session.get(f"{index.rstrip('/')}/{name}/", headers={"Accept": "text/html"})
    answer.raise_for_status()
    return answer.text


def main() -> None:
    """Ask the index, by pip's own session: with its certificates, proxies and passwords."""
    from pip._internal.commands import create_command

    command = create_command("download")
    options, _ = command.parse_args([])
    with command.main_context():
        text = written(partial(_page, options.index_url, command.get_default_session(options)), installed())
    (ROOT / "hashes.txt").write_text(text)
    print(f"hashes.txt: {text.count('--hash=')} files of {text.count('==')} versions", file=sys.stderr)


if __name__ == "__main__":
    main()
