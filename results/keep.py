"""Keep what reproductions measured: the records of their cells, and the figures and tables of all that are kept.

    python results/keep.py ablation runs/a runs/b --into results/deep/ablation --commit 5eb8997

A figure of many training runs is made in parts, on several machines. `records.jsonl` has a line for each cell, with its
settings, the commit and the hardware: whatever comes later is joined with it, and takes the place of an older record of
the same task and name. From these lines all figures and tables are drawn again.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from cdpo.cells import Records
from cdpo.errors import UserError
from cdpo.experiments import FIGURES
from cdpo.report.style import house
from cdpo.runs import RunFolder, write_atomic

_DIGITS = 9  # of what was measured


def keep(figure: str, folders: list[Path], into: Path, commit: str) -> Records:
    """Join, draw, write; all records that are kept now."""
    kept = into / "records.jsonl"
    lines = kept.read_text().splitlines() if kept.exists() else []
    known = {_name(record): record for record in map(json.loads, lines)}
    for path in folders:
        folder = RunFolder.open(path)
        if folder.config.get("figure") != figure:
            raise UserError(f"{str(path)!r} is no reproduction of {figure}; name its folder")
        made = {"commit": commit, "versions": folder.config["versions"]}
        known |= {_name(record): _short(record) | made for record in folder.records()}
    order = [_name(cell.identity) for cell in FIGURES[figure].cells("paper")]
    records = sorted(known.values(), key=lambda record: order.index(_name(record)))
    into.mkdir(parents=True, exist_ok=True)
    write_atomic(kept, "".join(json.dumps(record) + "\n" for record in records))
    with house():
        drawn = FIGURES[figure].draw(records, into)
    for path in drawn:
        if path.suffix == ".png":  # the same picture as its .svg
            path.unlink()
    return records


def _name(told: dict[str, Any]) -> tuple[str, str]:
    """What a cell is called in its figure."""
    return told["task"], told["label"] or told["agent"]


def _short(value: Any) -> Any:
    """With as many digits as are of use."""
    if isinstance(value, dict):
        return {key: each if key == "settings" else _short(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_short(each) for each in value]
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def main() -> None:
    """By the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", choices=FIGURES)
    parser.add_argument("folders", nargs="*", type=Path, help="of reproductions; none to draw again what is kept")
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--commit", default="", help="at which the folders were made")
    options = parser.parse_args()
    try:
        records = keep(options.figure, options.folders, options.into, options.commit)
    except UserError as error:
        parser.error(str(error))
    print(f"{len(records)} records in {options.into}")


if __name__ == "__main__":
    main()
