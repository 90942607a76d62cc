"""HTML in which text is escaped unless it says that it is markup already."""

import html
from collections.abc import Iterable, Mapping
from typing import Any

_DEEPEST = 8  # settings in settings, or lists in lists; ours have three


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


def facts(pairs: Mapping[str, str]) -> Markup:
    """A list of names and what they are."""
    return tag("dl", *(tag("div", tag("dt", key), tag("dd", value)) for key, value in pairs.items()), class_="facts")


def flat(value: Mapping[str, Any], prefix: str = "", depth: int = 0) -> dict[str, str]:
    """Nested settings as one level of text; what is nested too deeply to be read is left out.

    >>> flat({"eta": 0.2, "prior": {"alpha": 1.0, "known": None}})
    {'eta': '0.2', 'prior.alpha': '1.0', 'prior.known': 'none'}
    """
    found = {}
    for key, each in value.items():
        if isinstance(each, Mapping) and depth < _DEEPEST:
            found.update(flat(each, f"{prefix}{key}.", depth + 1))
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


def _words(value: object, depth: int = 0) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if depth == _DEEPEST or isinstance(value, Mapping):
        return "…"
    if isinstance(value, list | tuple):
        return ", ".join(_words(each, depth + 1) for each in value)
    return str(value)
