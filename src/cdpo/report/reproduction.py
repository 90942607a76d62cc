"""What a page shows of reproductions: their figures as they were drawn, and the tables behind them that are short."""

import csv
import re
from collections.abc import Mapping
from pathlib import Path

from cdpo.errors import UserError
from cdpo.report.markup import Markup, drawing, facts, join, number, tag
from cdpo.report.parts import duration, provenance, table
from cdpo.report.values import is_number
from cdpo.runs import RunFolder

NOTES = (
    "Figures and tables of a reproduction are those of its folder figures, where all of their data are. Each of its "
    "training runs can be shown by itself: cdpo report FOLDER/cells/NAME."
)

_ROWS = 60  # of a table that is shown; more is for programs


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
    names = folder.summary.get("figures") if (folder.path / "summary.json").exists() else None
    if not names:
        command = folder.config.get("command", "cdpo reproduce")
        raise UserError(f"{str(folder.path)!r} has no figures yet; go on with: {command}")
    return [folder.path / "figures" / Path(str(name)).name for name in names]


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
    title, text = path.stem.replace("-", " "), _text(path)
    width = re.search(r'<svg[^>]* viewBox="0 0 ([0-9.]+) ', text)
    if width is None:
        raise _unreadable(path, "it is no drawing")
    shown = tag("div", drawing(text, title), class_="wide", style=f"--natural: {width[1]}pt")
    return tag("figure", shown, tag("figcaption", title))


def _table(path: Path) -> Markup:
    head, *rows = [*csv.reader(_text(path).splitlines())] or [[]]
    title = path.stem.replace("-", " ")
    if len(rows) > _ROWS:
        return tag("p", f"{title}: {len(rows):,} rows in figures/{path.name}", class_="lead")
    body = tag("tbody", *(_row(*map(_shown, row)) for row in rows))
    return join([tag("h4", title), table(title, [each.replace("_", " ") for each in head], body)])


def _row(first: str, *others: str) -> Markup:
    return tag("tr", tag("th", first, scope="row"), *(tag("td", each) for each in others))


def _shown(value: str) -> str:
    try:
        parsed = float(value)
    except ValueError:
        return value
    return f"{int(parsed):,}" if value.lstrip("-").isdigit() else number(parsed)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, reason: object) -> UserError:
    return UserError(f"cannot read {str(path)!r}: {reason}; draw it again with cdpo reproduce")
