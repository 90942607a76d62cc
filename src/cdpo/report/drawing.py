"""The one way for an SVG file into a page: what it says is made anew from the few things that our figures say.

A file may be a stranger's. Nothing of its text is copied: elements, attributes and properties that are not listed here
are refused, and values must look as matplotlib writes them. References lead to a shape in the same drawing alone.
"""

import functools
import re
import zlib
from collections.abc import Mapping
from typing import NoReturn
from xml.parsers import expat

from matplotlib.figure import Figure

from cdpo.report import style
from cdpo.report.markup import Markup, tag

LARGEST = 8 << 20  # bytes of a file; the largest of our figures have one or two
_DEEPEST = 24  # elements in each other; our figures have seven

_SVG, _LINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
# No pattern can match a text in two ways: none takes long, whatever the text.
_NUMBER = r"-?\d{1,12}(?:\.\d{1,12})?"
_NUMBERS = rf"{_NUMBER}(?:[ ,]+{_NUMBER})*"
_NAME = r"[A-Za-z][\w-]{0,99}"
_PAINT = r"none|#[0-9a-f]{6}"
_TURNED = rf"(?:[a-z]+\({_NUMBERS}\) ?)*"
_SHAPE = {"id": _NAME, "d": r"[MLQCz0-9. \n-]*", "style": r"[^<>&]*", "clip-path": rf"url\(#{_NAME}\)"}

# What an element may have, as patterns of the whole value, and what may be in it.
_ATTRIBUTES: Mapping[str, Mapping[str, str]] = {
    "svg": {"viewBox": r"0 0 \d{1,6}(\.\d{1,6})? \d{1,6}(\.\d{1,6})?", "width": ".*", "height": ".*", "version": ".*"},
    "defs": {},
    "style": {"type": ".*"},
    "g": {"id": ".*", "clip-path": _SHAPE["clip-path"], "style": _SHAPE["style"], "transform": _TURNED},
    "path": _SHAPE,
    "use": {"href": f"#{_NAME}", "x": _NUMBER, "y": _NUMBER, "style": _SHAPE["style"]},
    "text": {"style": _SHAPE["style"], "x": _NUMBER, "y": _NUMBER, "transform": _TURNED},
    "tspan": {"style": _SHAPE["style"], "x": _NUMBERS, "y": _NUMBERS},
    "clipPath": {"id": _NAME},
    "rect": dict.fromkeys(("x", "y", "width", "height"), _NUMBER),
}
_DRAWN = frozenset({"g", "defs", "path", "use", "text", "rect"})
_CHILDREN: Mapping[str, frozenset[str]] = {
    "svg": _DRAWN,
    "g": _DRAWN,
    "text": frozenset({"tspan"}),
    "defs": frozenset({"style", "path", "clipPath"}),
    "clipPath": frozenset({"path", "rect"}),
}
_PROPERTIES: Mapping[str, str] = {
    **dict.fromkeys(("fill", "stroke"), _PAINT),
    **dict.fromkeys(("opacity", "fill-opacity", "stroke-opacity", "stroke-width", "stroke-dashoffset"), _NUMBER),
    "stroke-dasharray": _NUMBERS,
    "stroke-linecap": "butt|round|square",
    "stroke-linejoin": "miter|round|bevel",
    "font": r"[\w', .-]*",
    "font-size": rf"{_NUMBER}px",
    "font-family": r"[\w', -]*",
    "font-style": "normal|italic|oblique",
    "font-weight": r"\d{3}",
    "text-anchor": "start|middle|end",
}
# For the whole page, which has its own, or about the file.
_LEFT_OUT = {("svg", "width"), ("svg", "height"), ("svg", "version"), ("g", "id")}


class Foreign(ValueError):
    """A drawing holds what no figure of ours does."""


def inline(figure: Figure, title: str) -> Markup:
    """The figure as an element of a page. `title` is what a screen reader says."""
    return drawing(style.svg(figure), title)


def drawing(svg: bytes, title: str) -> Markup:
    """The drawing of an SVG file as an element of a page.

    An `expat.ExpatError` if it is no XML, and `Foreign` if it is not what our figures are made of.
    """
    return _Reader(svg, title).read()


class _Reader:
    """Goes through a file once and builds the elements of the page."""

    def __init__(self, svg: bytes, title: str) -> None:
        self._svg, self._title = svg, title
        self._own = f"{zlib.crc32(svg):08x}"  # no two drawings of a page share names
        self._open: list[tuple[str, dict[str, str], list[str]]] = []
        self._found = Markup("")
        self._names: dict[str, set[str]] = {"path": set(), "clipPath": set()}  # that may be referred to
        self._wanted: dict[str, set[str]] = {"path": set(), "clipPath": set()}

    def read(self) -> Markup:
        """The whole drawing."""
        parser = expat.ParserCreate("utf-8", namespace_separator=" ")
        parser.buffer_text = True
        parser.StartDoctypeDeclHandler = self._doctype
        parser.EntityDeclHandler = lambda *_: _refuse("an entity")
        parser.SkippedEntityHandler = lambda *_: _refuse("an entity")
        parser.ProcessingInstructionHandler = lambda *_: _refuse("an instruction")
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        parser.Parse(self._svg, True)
        for kind, wanted in self._wanted.items():
            if wanted - self._names[kind]:
                _refuse("a reference to what it does not draw")
        return self._found

    def _doctype(self, name: str, system: str | None, public: str | None, internal: int) -> None:
        # That of SVG 1.1, which matplotlib writes, is not looked up; declarations of the file's own are another thing.
        if internal:
            _refuse("declarations")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        name = _local(name, _SVG)
        inside = _CHILDREN.get(self._open[-1][0], frozenset()) if self._open else {"svg"}
        if name not in inside:
            _refuse(f"<{name}>" if name not in _ATTRIBUTES else f"<{name}> where none belongs")
        if len(self._open) == _DEEPEST:
            _refuse("too many elements in each other")
        kept = dict(self._attribute(name, *each) for each in attributes.items())
        if name == "svg":
            if "viewBox" not in kept:
                _refuse("no size")
            kept = {"role": "img", "aria-label": self._title, **kept}
        self._open.append((name, {key: value for key, value in kept.items() if (name, key) not in _LEFT_OUT}, []))

    def _attribute(self, element: str, name: str, value: str) -> tuple[str, str]:
        name = _local(name, _LINK) if " " in name else name
        pattern = _ATTRIBUTES[element].get(name)
        if pattern is None:
            _refuse(f"{name!r} of <{element}>")
        if not re.fullmatch(pattern, value, re.ASCII):
            _refuse(f"an unknown {name!r} of <{element}>")
        if name == "id" and element in self._names:
            if value in self._names[element]:
                _refuse("a name twice")
            self._names[element].add(value)
            return name, f"{self._own}-{value}"
        if name == "clip-path":
            self._wanted["clipPath"].add(value[5:-1])
            return name, f"url(#{self._own}-{value[5:]}"
        if name == "href":
            self._wanted["path"].add(value[1:])  # never a group: groups of groups would be drawn without end
            return "xlink:href", f"#{self._own}-{value[1:]}"
        return name, _style(value) if name == "style" else value

    def _text(self, text: str) -> None:
        element = self._open[-1][0]
        if element in ("text", "tspan"):
            self._open[-1][2].append(text)
        elif element != "style" and text.strip():
            _refuse("text that is not drawn")

    def _end(self, _: str) -> None:
        name, attributes, children = self._open.pop()
        if name == "style":  # would hold for the whole page
            return
        made = tag(name, *children, **attributes)
        if self._open:
            self._open[-1][2].append(made)
        else:
            self._found = made


def width_of(shown: Markup) -> str:
    """The width of a drawing that `drawing` made, in points."""
    found = re.search(r'viewBox="0 0 ([0-9.]+) ', shown)
    return found[1] if found else "0"


@functools.lru_cache(maxsize=4096)
def _style(text: str) -> str:
    """Declarations, each of them known."""
    kept = []
    for declaration in filter(None, (each.strip() for each in text.split(";"))):
        name, _, value = (part.strip() for part in declaration.partition(":"))
        if name not in _PROPERTIES or not re.fullmatch(_PROPERTIES[name], value, re.ASCII):
            _refuse(f"the style {declaration[:40]!r}")
        kept.append(f"{name}: {value}")
    return "; ".join(kept)


def _local(name: str, namespace: str) -> str:
    space, _, local = name.rpartition(" ")
    if space != namespace:
        _refuse(f"{local!r}, which is not of SVG")
    return local


def _refuse(what: str) -> NoReturn:
    raise Foreign(f"it holds {what[:100]}")
