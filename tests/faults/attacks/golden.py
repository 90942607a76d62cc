"""Runs of earlier versions, of every kind."""

import zipfile
from pathlib import Path

from cdpo.experiments import FIGURES
from cdpo.report.style import house
from cdpo.runs import RunFolder

GOLDEN = Path(__file__).parents[2] / "golden"


def renewed(name: str, home: Path) -> Path:
    """A run of an earlier version as this one writes it, with checksums."""
    with zipfile.ZipFile(GOLDEN / "0.1.0" / f"{name}.zip") as archive:
        archive.extractall(home / "earlier" / name)
    old = RunFolder(home / "earlier" / name / "run")
    config = {key: each for key, each in old.config.items() if key != "format"}
    new = RunFolder.create(home / name, config)
    new.extend(old.records())
    drawn = {}
    if config["kind"] == "reproduction":
        with house():
            paths = FIGURES[config["figure"]].draw(old.summary["results"], new.figures)
        drawn = {"figures": [path.name for path in paths]}
    new.write_summary({**old.summary, **drawn})
    return new.path
