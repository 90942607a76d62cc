"""Parts of a section that look the same for every kind of run."""

from collections.abc import Mapping, Sequence
from typing import Any

from cdpo.report.markup import Markup, facts, flat, join, number, tag
from cdpo.report.style import Look
from cdpo.report.tables import Estimate
from cdpo.report.values import is_number, nested


def card(legend: Mapping[str, Look], panels: Sequence[Markup], caption: str) -> Markup:
    """A figure: drawings side by side under one legend."""
    names = tag("ul", *(tag("li", _swatch(look), name) for name, look in legend.items()), class_="legend")
    return tag("figure", names, tag("div", *panels, class_="panels"), tag("figcaption", caption))


def table(label: str, heads: Sequence[str], *bodies: str) -> Markup:
    """A table that scrolls by itself where the page is too narrow; `label` is what a screen reader says."""
    head = tag("thead", tag("tr", *(tag("th", each, scope="col") for each in heads)))
    return tag("div", tag("table", head, *bodies), class_="scroll", tabindex="0", role="region", aria_label=label)


def settings_list(parts: Mapping[str, Mapping[str, str]]) -> Markup:
    """A list of parts, each with its settings in one paragraph."""
    return tag("dl", *(_settings_of(name, part) for name, part in parts.items()), class_="settings")


def provenance(config: Mapping[str, Any], summary: Mapping[str, Any]) -> Markup:
    """The versions and the hardware of a run under a heading; nothing if the run does not tell."""
    versions = flat(nested(config, "versions") | nested(summary, "versions"))
    hardware = flat(nested(config, "hardware") | nested(summary, "hardware"))
    if is_number(summary.get("wall_s")):
        hardware["time taken"] = duration(summary["wall_s"])
    told = [facts(each) for each in (versions, hardware) if each]
    return join([tag("h3", "Versions and hardware"), *told]) if told else Markup("")


def seed_list(seeds: Sequence[int]) -> str:
    """How many seeds, in their order, and which.

    >>> seed_list([0, 1, 2]), seed_list([7]), seed_list([])
    ('3 (0 to 2)', '1 (7)', '0')
    """
    span = f" ({seeds[0]} to {seeds[-1]})" if len(seeds) > 1 else f" ({seeds[0]})" if seeds else ""
    return f"{len(seeds)}{span}"


def interval(found: Estimate) -> Markup:
    """A mean and, paler, its interval."""
    bounds = _bounds(found)
    return join([number(found.mean), tag("span", bounds, class_="soft") if bounds else ""])


def plain_interval(found: Estimate) -> str:
    """The same where there is only text."""
    return number(found.mean) + _bounds(found)


def duration(seconds: float | None) -> str:
    """In the unit that fits.

    >>> duration(12.34), duration(321.0), duration(86400.0)
    ('12.3 s', '5.3 min', '24.0 h')
    """
    if seconds is None:
        return "–"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


def _swatch(look: Look) -> Markup:
    dashes = {"stroke_dasharray": " ".join(f"{each * look.width:g}" for each in look.dashes)} if look.dashes else {}
    stroke = tag("line", x2="30", y1="4", y2="4", stroke=look.colour, stroke_width=f"{look.width:g}", **dashes)
    return tag("svg", stroke, width="30", height="8", aria_hidden="true")


def _settings_of(name: str, part: Mapping[str, str]) -> Markup:
    pairs: list[str] = [join([tag("span", tag("i", key), " ", value), " "]) for key, value in part.items()]
    return tag("div", tag("dt", name), tag("dd", *(pairs or ["no settings"])))


def _bounds(found: Estimate) -> str:
    return "" if found.low is None else f" [{number(found.low)}, {number(found.high)}]"
