"""Keep what reproductions measured: the records of their cells, and the figures and tables of all that are kept.

    python tools/keep.py ablation runs/a runs/b --into results/deep/ablation --commit 5eb8997

A figure of many training runs is made in parts, on several machines. `records.jsonl` has a line for each cell, with its
settings, the commit and the hardware: whatever comes later is joined with it, and takes the place of an older record of
the same task and name. From these lines all figures and tables are drawn again; episodes of which these read nothing,
those between the evaluations of runs without a model, are not kept. `manifest.json` says where all of it is from, as
results/README.md has it; what the study asks, its status and its notes stay as they were written there.

Figures share cells. What another figure keeps need not be run again:

    python tools/keep.py baselines --also results/deep/exploration --into results/deep/baselines
"""

import argparse
import json
import re
from collections.abc import Sequence
from datetime import date
from itertools import compress
from pathlib import Path
from typing import Any

from cdpo.cells import Records
from cdpo.errors import UserError
from cdpo.experiments import FIGURES
from cdpo.files import write_atomic
from cdpo.report.style import house
from cdpo.runs import RunFolder
from cdpo.version import checked_format

_FORMAT = 1  # of records.jsonl and manifest.json
_DIGITS = 9  # of what was measured
_WORLD = {"episode", "env_steps", "return", "eval_return"}  # columns of curves that need no model
_MADE = ("date", "commit", "versions", "hardware", "note")  # what is told of a record besides what it is of


def keep(figure: str, folders: list[Path], into: Path, commit: str, also: Sequence[Path] = ()) -> Records:
    """Join, draw, write; all records that are kept now. What is kept already is not replaced by what is `also`."""
    cells = {_name(cell.identity): cell.identity for cell in FIGURES[figure].cells("paper")}
    kept = into / "records.jsonl"
    known = _known(kept)
    if folders and not re.fullmatch("[0-9a-f]{7,40}", commit):
        raise UserError(f"{commit!r} is no hash of a commit; give the one at which the folders were made, by --commit")
    for path in folders:
        folder = RunFolder.open(path)
        if folder.config.get("figure") != figure:
            raise UserError(f"{str(path)!r} is no reproduction of {figure}; name its folder")
        made = {"date": date.today().isoformat(), "commit": commit, "versions": folder.config["versions"]}
        known |= {_name(record): _short(record) | made for record in folder.records()}
    for path in also:
        theirs = _known(path / "records.jsonl")
        if not theirs:
            raise UserError(f"{str(path)!r} keeps nothing: it has no records.jsonl")
        known = {name: told for name, told in theirs.items() if _same(told, cells.get(name, {}))} | known
    order = list(cells)
    records = sorted(map(_thin, known.values()), key=lambda record: order.index(_name(record)))
    into.mkdir(parents=True, exist_ok=True)
    write_atomic(kept, "".join(json.dumps(record) + "\n" for record in records))
    with house():
        drawn = FIGURES[figure].draw(records, into)
    for path in drawn:
        if path.suffix == ".png":  # the same picture as its .svg
            path.unlink()
    _describe(into, figure, records)
    return records


def _describe(into: Path, figure: str, records: Records) -> None:
    """Write the manifest: what a person wrote of the study stays, runs and files are those that there are now."""
    path = into / "manifest.json"
    told = json.loads(path.read_text()) if path.exists() else {"asks": FIGURES[figure].shows, "status": "current"}
    told = {"format": _FORMAT, **told}
    runs: list[dict[str, Any]] = []
    for record in records:  # those that were made alike are told together
        made = {key: record[key] for key in _MADE if key in record}
        run = next((run for run in runs if {key: run[key] for key in _MADE if key in run} == made), None)
        if run is None:
            runs.append(run := {"of": [], **made})
        run["of"].append(": ".join(_name(record)))
    tasks = list(dict.fromkeys(record["task"] for record in records))
    whole = {cell.identity["task"] for cell in FIGURES[figure].cells("paper")} == set(tasks)
    files = {file.name: told.get("files", {}).get(file.name, {}) for file in sorted(into.iterdir()) if file != path}
    told = {key: value for key, value in told.items() if key != "files"} | {
        "date": told.get("date", date.today().isoformat()),
        "command": f"cdpo reproduce {figure} --scale paper" + ("" if whole else " --tasks " + " ".join(tasks)),
        "settings": "records.jsonl",
        "runs": runs,
        "files": files,
    }
    write_atomic(path, json.dumps(told, indent=1, ensure_ascii=False) + "\n")


def _known(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The records of a file, if there is one, by their names."""
    if not path.exists():
        return {}
    manifest = path.with_name("manifest.json")
    told = json.loads(manifest.read_text()) if manifest.exists() else {}
    checked_format(manifest, told.get("format", 1), _FORMAT)
    lines = path.read_text().splitlines()
    return {_name(record): record for record in map(json.loads, lines)}


def _name(told: dict[str, Any]) -> tuple[str, str]:
    """What a cell is called in its figure."""
    return told["task"], told["label"] or told["agent"]


def _same(record: dict[str, Any], cell: dict[str, Any]) -> bool:
    """Whether a record is of a cell, but for settings that there were none of then."""
    if any(record[key] != cell.get(key) for key in ("task", "agent", "label", "seeds", "episodes")):
        return False
    now = json.loads(json.dumps(cell["settings"]))
    parts = [(part, now.get(name)) for name, part in record["settings"].items()]
    return all(
        then == later or (isinstance(then, dict) and isinstance(later, dict) and then.items() <= later.items())
        for then, later in parts
    )


def _short(value: Any) -> Any:
    """With as many digits as are of use."""
    if isinstance(value, dict):
        return {key: each if key == "settings" else _short(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_short(each) for each in value]
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def _thin(record: dict[str, Any]) -> dict[str, Any]:
    """Without the episodes of which no figure and no table reads anything."""
    return record | {"curves": [_read(curve) for curve in record["curves"]]}


def _read(curve: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Where a model was, all that it said; else evaluations, and the last episode, which tells how far a seed came."""
    if curve.keys() - _WORLD:
        return curve
    read = [*(value is not None for value in curve["eval_return"][:-1]), True]
    return {name: list(compress(values, read)) for name, values in curve.items()}


def main() -> None:
    """By the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", choices=FIGURES)
    parser.add_argument("folders", nargs="*", type=Path, help="of reproductions; none to draw again what is kept")
    parser.add_argument("--also", nargs="*", default=(), type=Path, help="folders of what other figures keep")
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--commit", default="", help="the hash of that at which the folders were made")
    options = parser.parse_args()
    try:
        records = keep(options.figure, options.folders, options.into, options.commit, options.also)
    except UserError as error:
        parser.error(str(error))
    print(f"{len(records)} records in {options.into}")


if __name__ == "__main__":
    main()
