"""HTML in which text is escaped unless it says that it is markup already."""

import html
import re
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from matplotlib.figure import Figure

from cdpo.report import style


class Markup(str):
    """HTML that is safe to put into a page as it is. Make it by `tag` and `join` only."""


def tag(name: str, *children: str, **attributes: str) -> Markup:
    """An element. `class_` is `class`, and other underscores are hyphens.

    >>> tag("p", "a < b, ", tag("b", "c"), class_="note")
    '<p class="note">a &lt; b, <b>c</b></p>'
    """
    given = "".join(f' {key.rstrip("_").replace("_", "-")}="{html.escape(value)}"' for key, value in attributes.items())
    return Markup(f"<{name}{given}>{join(children)}</{name}>")


def join(parts: Iterable[str]) -> Markup:
    """The parts one after the other; those that are not markup are escaped."""
    return Markup("".join(part if isinstance(part, Markup) else html.escape(part) for part in parts))


def inline(figure: Figure, title: str) -> Markup:
    """The figure as an element of a page. `title` is what a screen reader says."""
    return drawing(style.svg(figure).decode(), title)


def drawing(text: str, title: str) -> Markup:
    """A drawing of this project's, the text of an SVG file, as an element of a page."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)  # would hold for the whole page; the page has it
    text = re.sub(r' xmlns(:xlink)?="[^"]*"| version="[^"]*"', "", text, count=3)
    text = re.sub(r' width="[^"]*"| height="[^"]*"', "", text, count=2)
    text = text.replace("<svg", f'<svg role="img" aria-label="{html.escape(title)}"', 1)
    return Markup(_unique_names(text))


def facts(pairs: Mapping[str, str]) -> Markup:
    """A list of names and what they are."""
    return tag("dl", *(tag("div", tag("dt", key), tag("dd", value)) for key, value in pairs.items()), class_="facts")


def flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as one level of text.

    >>> flat({"eta": 0.2, "prior": {"alpha": 1.0, "known": None}})
    {'eta': '0.2', 'prior.alpha': '1.0', 'prior.known': 'none'}
    """
    found = {}
    for key, each in value.items():
        if isinstance(each, Mapping):
            found.update(flat(each, f"{prefix}{key}."))
        else:
            found[f"{prefix}{key}"] = _words(each)
    return found


def number(value: float | None) -> str:
    """Three digits, or all before the point.

    >>> number(0.012), number(12345.6), number(None)
    ('0.0120', '12,346', '–')
    """
    if value is None:
        return "–"
    if value == 0:
        return "0"
    text = f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:#.3g}"
    return text.replace("-", "−", 1) if value < 0 else text


def percent(value: float | None) -> str:
    """A share in per cent.

    >>> percent(0.1), percent(0.3333)
    ('10%', '33.3%')
    """
    return "–" if value is None else f"{round(100 * value, 1):g}%"


def _words(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(_words, value))
    return str(value)


def _unique_names(text: str) -> str:
    """Drops the identifiers nobody refers to, and makes the others differ from those of other figures."""
    used = set(re.findall(r'url\(#([^)"]+)\)|href="#([^"]+)"', text))
    names = {name for pair in used for name in pair if name}
    own = f"{zlib.crc32(text.encode()):08x}"

    def rename(found: re.Match[str]) -> str:
        return f' id="{own}-{found[1]}"' if found[1] in names else ""

    text = re.sub(r' id="([^"]*)"', rename, text)
    text = re.sub(r"url\(#", f"url(#{own}-", text)
    return re.sub(r'href="#', f'href="#{own}-', text)
