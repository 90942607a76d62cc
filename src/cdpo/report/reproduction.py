"""What a page shows of reproductions: their figures as they were drawn, and the tables behind them that are short."""

import csv
import io
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from xml.parsers.expat import ExpatError

from cdpo.errors import UserError
from cdpo.files import open_saved
from cdpo.report.drawing import LARGEST, Foreign, drawing, width_of
from cdpo.report.markup import Markup, facts, join, number, tag
from cdpo.report.parts import duration, provenance, table
from cdpo.report.values import is_number
from cdpo.runs import RunFolder
from cdpo.terminal import printable

NOTES = (
    "Figures and tables of a reproduction are those of its folder figures, where all of their data are. Each of its "
    "training runs can be shown by itself: cdpo report FOLDER/cells/NAME."
)

_ROWS = 60  # of a table that is shown; more is for programs
_READ = 256 << 20  # bytes of a table that is read; ours have a tenth at most


def section(name: str, folder: RunFolder) -> Markup:
    """Everything about one reproduction."""
    config, files = folder.config, drawn(folder)
    return tag(
        "section",
        tag("h2", name),
        facts(_outline(folder)),
        tag("pre", tag("code", str(config["command"]))) if "command" in config else "",
        *(_figure(path) for path in files if path.suffix == ".svg"),
        tag("h3", "Tables"),
        *(_table(path) for path in files if path.suffix == ".csv"),
        provenance(config, {}),
    )


def comparison(folders: Mapping[str, RunFolder]) -> Markup:
    """Nothing: each reproduction is a comparison already."""
    return Markup("")


def drawn(folder: RunFolder) -> list[Path]:
    """The figures and their data, which `cdpo reproduce` wrote, in its order."""
    names = folder.summary.get("figures") if folder.finished else None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        command = printable(str(folder.config.get("command", "cdpo reproduce")))
        raise UserError(f"{str(folder.path)!r} has no figures yet; go on with: {command}")
    return [folder.inside("figures", name) for name in dict.fromkeys(names)]


def _outline(folder: RunFolder) -> dict[str, str]:
    config, found = folder.config, folder.records()
    times = [record["wall_s"] for record in found if is_number(record.get("wall_s"))]
    return {
        "kind": "reproduction",
        "figure": str(config.get("figure", "unknown")),
        "scale": str(config.get("scale", "unknown")),
        **({"cells done": str(len(found))} if found else {}),
        **({"longest cell": duration(max(times))} if times else {}),
    }


def _figure(path: Path) -> Markup:
    title, data = path.stem.replace("-", " "), _read(path, LARGEST)
    try:
        drawn = drawing(data, title)
    except ExpatError as error:
        raise _unreadable(path, error) from error
    except Foreign as error:
        return tag("p", f"{title}: figures/{path.name} is not shown, as {error}", class_="notice")
    shown = tag("div", drawn, class_="wide", style=f"--natural: {width_of(drawn)}pt")
    return tag("figure", shown, tag("figcaption", title))


def _table(path: Path) -> Markup:
    title, data = path.stem.replace("-", " "), _read(path, _READ)
    rows = csv.reader(io.TextIOWrapper(io.BytesIO(data), encoding="utf-8", newline=""))
    try:
        head = next(rows, [])
        shown = [row for row in islice(rows, _ROWS) if row]
        others = sum(1 for _ in rows)
    except (csv.Error, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from error
    if others:
        return tag("p", f"{title}: {len(shown) + others:,} rows in figures/{path.name}", class_="lead")
    body = tag("tbody", *(_row(*map(_shown, row)) for row in shown))
    return join([tag("h4", title), table(title, [each.replace("_", " ") for each in head], body)])


def _row(first: str, *others: str) -> Markup:
    return tag("tr", tag("th", first, scope="row"), *(tag("td", each) for each in others))


def _shown(value: str) -> str:
    try:
        parsed = float(value)
    except ValueError:
        return value
    if not is_number(parsed):
        return value
    return f"{int(parsed):,}" if value.lstrip("-").isdigit() else number(parsed)


def _read(path: Path, most: int) -> bytes:
    if not path.exists():
        raise _unreadable(path, "it is gone")
    try:
        with open_saved(path) as file:
            data: bytes = file.read(most + 1)
    except OSError as error:
        raise _unreadable(path, error) from error
    if len(data) > most:
        raise _unreadable(path, f"it is larger than {most >> 20} MiB")
    return data


def _unreadable(path: Path, reason: object) -> UserError:
    return UserError(f"cannot read {str(path)!r}: {reason}; draw it again with cdpo reproduce")
