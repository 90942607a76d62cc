"""The versions that are tested together are pinned, each in one place."""

import re
import tomllib
from pathlib import Path

import pytest
from hashes import fits, installed, links, needed, pins, written
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION = next(str(pin.specifier)[2:] for pin in pins() if pin.name == "iniconfig")


def test_all_that_a_development_install_and_its_build_need_is_pinned():
    pinned = {canonicalize_name(pin.name) for pin in needed(map(str, pins()))}
    assert installed() <= pinned
    assert {"hatchling", "editables", "trove-classifiers"} <= pinned


def test_nothing_is_pinned_to_a_nightly_or_another_version_before_its_release_but_what_peers_alone_need():
    for pin in pins():
        assert "nightly" not in pin.name and not pin.specifier.prereleases, pin


def test_what_peers_alone_need_is_pinned_nowhere_else():
    main, peers = ({canonicalize_name(pin.name) for pin in pins(f"constraints{part}.txt")} for part in ("", "-peers"))
    assert not main & peers
    assert {canonicalize_name(each.name) for each in needed(PROJECT["optional-dependencies"]["peers"])} <= peers


def hashed():
    """The digests in hashes.txt, by the pin they are of."""
    lines = re.sub(r"\\\n", "", (ROOT / "hashes.txt").read_text()).splitlines()
    told = [line.partition(" --hash=") for line in lines if not line.startswith("#")]
    return {pin.strip(): re.findall(r"sha256:([0-9a-f]{64})(?: |$)", digests) for pin, _, digests in told}


def test_every_version_that_a_development_install_has_is_kept_with_its_hashes_and_no_other_is():
    here, known = installed(), hashed()
    assert set(known) == {str(pin) for pin in pins() if canonicalize_name(pin.name) in here}
    assert all(known.values())


def test_no_address_is_kept_with_the_hashes():
    assert not re.search(r"https?:|//|\bindex-url\b", (ROOT / "hashes.txt").read_text())


@pytest.mark.parametrize(
    ("name", "pin", "fitting"),
    [
        ("some-1.0-py3-none-any.whl", "some==1.0", True),
        ("some-1.0-cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", "some==1.0", True),
        ("some-1.0-cp38-abi3-macosx_11_0_arm64.whl", "some==1.0", True),
        ("some-1.1-py3-none-any.whl", "some==1.0", False),
        ("some-1.0.tar.gz", "some==1.0", False),
        ("some-1.0-cp310-cp310-manylinux2014_x86_64.whl", "some==1.0", False),
        ("some-1.0-cp313-cp313t-manylinux2014_x86_64.whl", "some==1.0", False),
        ("some-1.0-cp312-cp312-win_amd64.whl", "some==1.0", False),
        ("some-1.0-cp312-cp312-musllinux_1_2_x86_64.whl", "some==1.0", False),
        ("some-1.0-cp312-cp312-manylinux2014_x86_64.whl", "some==1.0; python_version < '3.12'", False),
        ("some-1.0-cp311-cp311-manylinux2014_x86_64.whl", "some==1.0; python_version < '3.12'", True),
    ],
)
def test_the_files_that_are_kept_are_wheels_for_the_pythons_and_platforms_that_are_installed_on(name, pin, fitting):
    assert fits(name, Requirement(pin)) is fitting


def test_digests_are_read_from_a_page_of_the_index_and_written_beside_their_pins():
    digest, other = "a1" * 32, "b2" * 32

    def page(name):
        files = ((f"iniconfig-{VERSION}-py3-none-any.whl", digest), (f"iniconfig-{VERSION}.tar.gz", other))
        return "".join(f'<a data-x="" href="https://host/{path}#sha256={sha}">{path}</a>' for path, sha in files)

    assert links(page("")) == {f"iniconfig-{VERSION}-py3-none-any.whl": digest, f"iniconfig-{VERSION}.tar.gz": other}
    text = written(page, {"iniconfig"})
    assert text.endswith(f"\niniconfig=={VERSION} \\\n    --hash=sha256:{digest}\n") and "host" not in text
    with pytest.raises(SystemExit, match="no wheel of iniconfig"):
        written(lambda name: "", {"iniconfig"})
