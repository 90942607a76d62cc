"""One page that holds everything: no script, no font, nothing that is loaded from anywhere."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from cdpo.errors import UserError, unknown
from cdpo.files import write_atomic
from cdpo.report import reproduction, tabular, training
from cdpo.report.markup import Markup, join, tag
from cdpo.runs import RunFolder


@dataclass(frozen=True)
class Kind:
    """How runs of one kind are shown. Names are unique on a page."""

    section: Callable[[str, RunFolder], Markup]
    comparison: Callable[[Mapping[str, RunFolder]], Markup]  # empty if the runs share nothing
    figures: Callable[[RunFolder], list[Path]]
    notes: str  # how to read the sections, once at the end of the page


# By the `kind` in a run's configuration.
KINDS = {
    "tabular": Kind(tabular.section, tabular.comparison, tabular.write_figures, tabular.NOTES),
    "train": Kind(training.section, training.comparison, training.write_figures, training.NOTES),
    "reproduction": Kind(reproduction.section, reproduction.comparison, reproduction.drawn, reproduction.NOTES),
}

# The reader's browser enforces what the first line of this file promises.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'"


def build_page(folders: Sequence[RunFolder]) -> str:
    """The page about some runs: a section each, after a comparison of those that share an environment and size."""
    named = _named(folders)
    by_kind: dict[str, dict[str, RunFolder]] = {}
    for name, folder in named.items():
        by_kind.setdefault(_kind(folder), {})[name] = folder
    sections = [KINDS[kind].comparison(group) for kind, group in by_kind.items() if len(group) > 1]
    sections += [KINDS[_kind(folder)].section(name, folder) for name, folder in named.items()]
    title = next(iter(named)) if len(named) == 1 else f"{len(named)} runs"
    # The style is ours and must not be escaped: a quoted ">" is no CSS.
    css = Markup(files("cdpo.report").joinpath("page.css").read_text(encoding="utf-8"))
    head = tag(
        "head",
        Markup('<meta charset="utf-8">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup('<meta name="color-scheme" content="light dark">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
        tag("title", f"{title} – cdpo report"),
        tag("style", css),
    )
    header = tag("header", tag("h1", "cdpo report"), tag("p", ", ".join(named)) if len(named) > 1 else "")
    footer = tag("footer", *(tag("p", KINDS[kind].notes) for kind in by_kind))
    body = tag("body", tag("main", header, *sections, footer))
    page = join([Markup("<!doctype html>\n"), tag("html", head, body, lang="en"), "\n"])
    return page.encode(errors="replace").decode()  # names of files may hold what is no text


def write_report(paths: Sequence[str | Path], out: Path | None = None) -> Path:
    """Writes the page about the runs at `paths` and says where.

    Without `out` that is `report.html` in the folder of a single run, else `cdpo-report.html` in the working directory.
    """
    folders = list({RunFolder.open(path).path.resolve(): RunFolder.open(path) for path in paths}.values())
    if not folders:
        raise UserError("there is nothing to report; name the folder of a run")
    if out is None:
        out = folders[0].inside("report.html") if len(folders) == 1 else Path("cdpo-report.html")
    page = build_page(folders)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(out, page)
    except OSError as error:
        raise UserError(f"cannot write {str(out)!r}: {error.strerror or error}; choose another file") from error
    return out


def write_figures(folder: RunFolder) -> list[Path]:
    """Writes the figures of a run into its folder `figures`, as PNG and SVG, with the data behind them as CSV."""
    return KINDS[_kind(folder)].figures(folder)


def _kind(folder: RunFolder) -> str:
    kind = str(folder.config.get("kind"))
    if kind not in KINDS:
        raise UserError(f"{str(folder.path)!r} cannot be shown: {unknown('kind of run', kind, KINDS)}")
    return kind


def _named(folders: Sequence[RunFolder]) -> dict[str, RunFolder]:
    """The folders by their names, or by their paths where names are not unique."""
    names = [folder.path.resolve().name for folder in folders]
    unique = len(set(names)) == len(names)
    return {name if unique else str(folder.path): folder for name, folder in zip(names, folders, strict=True)}
