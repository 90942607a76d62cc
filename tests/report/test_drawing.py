import re
from html.parser import HTMLParser
from xml.parsers.expat import ExpatError

import pytest
from matplotlib.figure import Figure

from cdpo.report import style
from cdpo.report.drawing import Foreign, drawing, inline, width_of

HEAD = '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 90 50">'
DOCTYPE = '<!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.1//EN" "http://www.w3.org/Graphics/SVG/1.1/DTD/svg11.dtd">'
DOT = '<defs><path id="dot" d="M 0 0 L 1 1" style="stroke: #000000"/></defs>'


def svg(inner, head=HEAD):
    return f"{head}{inner}</svg>".encode()


class Shown(HTMLParser):
    """The elements of a drawing and its texts, as a browser takes them."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.words = [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)

    def handle_data(self, data):
        self.words.append(data)


def everything():
    """A figure with all that figures are made of."""
    with style.house():
        figure = Figure(layout="constrained")
        axes = figure.add_subplot()
        axes.plot([0, 1, 2], [1, 4, 2], "o--", label="a < b", alpha=0.5)
        axes.fill_between([0, 1, 2], [0, 1, 1], [2, 5, 3], alpha=0.2)
        axes.vlines([0, 1], 0, 2)
        axes.scatter([0, 1], [1, 2], s=[3, 9])
        axes.bar([0, 1], [1, 2])
        axes.text(0, 0, "slanted", rotation=30, weight="bold", fontstyle="italic", va="center")
        axes.annotate("there", (1, 1), (0.5, 0.5), arrowprops={"arrowstyle": "-|>"})
        axes.set_yscale("log")  # whose numbers are formulas
        axes.set_title(r"$\frac{1}{\sqrt{2}}$")
        axes.set_ylabel("é & more")
        figure.legend()
    return figure


def test_a_figure_of_ours_is_shown_with_all_of_its_shapes_and_words():
    figure = everything()
    text = style.svg(figure).decode()
    shown = inline(figure, 'a "title"')
    for name in ("path", "use", "text", "tspan", "rect", "clipPath"):
        assert len(re.findall(rf"<{name}\b", shown)) == len(re.findall(rf"<{name}\b", text)) > 0
    assert {"there", "slanted", "é & more", "a < b"} <= set(Shown(shown).words)
    assert 'aria-label="a &quot;title&quot;"' in shown and "<style" not in shown
    assert f'viewBox="0 0 {width_of(shown)} ' in text


def test_two_drawings_of_one_page_share_no_names():
    first, second = (drawing(svg(f'{DOT}<use xlink:href="#dot" x="{x}" y="1"/>'), "title") for x in (1, 2))
    names = [shown.split(' id="')[1].split('"')[0] for shown in (first, second)]
    assert names[0] != names[1]
    assert f'xlink:href="#{names[0]}"' in first and f'xlink:href="#{names[1]}"' in second


@pytest.mark.parametrize(
    "words",
    [
        "&lt;script&gt;alert(1)&lt;/script&gt;",
        "<![CDATA[</text></svg><script>alert(1)</script>]]>",
        "&#60;img src=x onerror=alert(1)&#62;",
        "<!-- a remark --></text><text>",
    ],
)
def test_text_of_a_drawing_stays_text(words):
    shown = Shown(drawing(svg(f"<text>{words}</text>"), "title"))
    assert set(shown.tags) == {"svg", "text"}
    assert ("alert(1)" in "".join(shown.words)) == ("alert(1)" in words)


def test_a_style_sheet_of_a_drawing_is_left_out():
    sheet = "<defs><style>@import url(http://far.example/a.css); </style></defs>"
    assert "import" not in drawing(svg(sheet), "title")
    assert "<b>" not in drawing(svg("<defs><style>&lt;/style&gt;&lt;b&gt;</style></defs>"), "title")


@pytest.mark.parametrize("declaration", ["font: italic 700 9px 'DejaVu Sans', sans-serif", "opacity: 0.5", ""])
def test_styles_that_matplotlib_writes_are_kept(declaration):
    assert declaration.replace("'", "&#x27;") in drawing(svg(f'<text style="{declaration}">a</text>'), "title")


FOREIGN = {
    "script": "<script>alert(1)</script>",
    "foreign object": "<foreignObject><p>text</p></foreignObject>",
    "image": '<image href="http://far.example/a.png"/>',
    "link": '<a xlink:href="http://far.example"><text>go</text></a>',
    "link to a script": '<a href="javascript:alert(1)"><text>go</text></a>',
    "animation": '<use xlink:href="#dot"><animate attributeName="href" to="http://far.example"/></use>',
    "set": '<set attributeName="onload" to="alert(1)"/>',
    "nested drawing": '<svg viewBox="0 0 1 1"></svg>',
    "HTML": '<meta xmlns="http://www.w3.org/1999/xhtml" http-equiv="refresh" content="0;url=http://far.example"/>',
    "no name space": '<iframe xmlns="" src="http://far.example"/>',
    "symbol": '<symbol id="a"><path d="M 0 0"/></symbol>',
    "pattern": '<pattern id="a"/>',
    "filter": '<filter id="a"><feImage href="http://far.example"/></filter>',
    "style in a shape": "<g><style>*{fill: red}</style></g>",
    "event": '<g onload="alert(1)"/>',
    "class": '<g class="panels"/>',
    "base": f'{DOT}<use xml:base="http://far.example" xlink:href="#dot"/>',
    "use from elsewhere": '<use xlink:href="http://far.example/a.svg#b"/>',
    "use of data": '<use xlink:href="data:image/svg+xml,a#b"/>',
    "use of a group": '<g id="all"><use xlink:href="#all"/></g>',
    "use of nothing": '<use xlink:href="#nothing"/>',
    "clip from elsewhere": '<g clip-path="url(http://far.example/a.svg#b)"/>',
    "clip by nothing": '<g clip-path="url(#nothing)"/>',
    "clip in a clip": '<defs><clipPath id="a"><g clip-path="url(#a)"/></clipPath></defs>',
    "a name twice": DOT + DOT,
    "a name that ends": '<defs><path id="a&quot;)" d="M 0 0"/></defs>',
    "address in a style": '<path d="M 0 0" style="fill: url(http://far.example)"/>',
    "unknown style": '<path d="M 0 0" style="cursor: url(http://far.example), auto"/>',
    "escaped style": '<path d="M 0 0" style="f\\69ll: #000000"/>',
    "style with a remark": '<path d="M 0 0" style="fill: #000000/**/"/>',
    "import": '<path d="M 0 0" style="@import url(http://far.example)"/>',
    "path that is none": '<path d="M 0 0 &lt;script"/>',
    "number that is none": '<text x="1e999">a</text>',
    "transform that is none": '<text transform="rotate(url(#a))">a</text>',
    "text outside": "<g>some text</g>",
    "deep groups": "<g>" * 100 + "</g>" * 100,
    "instruction": '<?xml-stylesheet href="http://far.example/a.css"?>',
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_no_figure_of_ours_holds_is_refused(name):
    with pytest.raises(Foreign, match="it holds "):
        drawing(svg(FOREIGN[name]), "title")


@pytest.mark.parametrize(
    "head",
    [
        HEAD.replace("<svg ", '<svg onload="alert(1)" '),
        HEAD.replace("90 50", '90 50" style="--natural: 0'),
        HEAD.replace(' viewBox="0 0 90 50"', ""),
        '<!DOCTYPE svg [<!ENTITY a "b">]>' + HEAD,
        DOCTYPE.replace(">", ' [<!ELEMENT svg ANY> <!ATTLIST svg onload CDATA "alert(1)">]>') + HEAD,
        DOCTYPE + HEAD + "<text>&unknown;</text>",
        '<!DOCTYPE svg [<!ENTITY % far SYSTEM "http://far.example/a.dtd"> %far;]>' + HEAD,
    ],
)
def test_beginnings_that_are_not_ours_are_refused(head):
    with pytest.raises(Foreign, match="it holds "):
        drawing(svg("", head), "title")


def test_the_document_type_of_matplotlib_is_no_declaration():
    assert drawing(svg("<text>a</text>", DOCTYPE + HEAD), "title").endswith("<text>a</text></svg>")


def test_entities_in_entities_are_refused_before_they_grow():
    lines = "".join(f'<!ENTITY a{i + 1} "{f"&a{i};" * 10}">' for i in range(20))
    bomb = f'<!DOCTYPE svg [<!ENTITY a0 "ha">{lines}]>{HEAD}<text>&a20;</text></svg>'
    with pytest.raises(Foreign, match="declarations"):
        drawing(bomb.encode(), "title")


@pytest.mark.parametrize(
    "text", [b"", b"\xff\xfe", b"<svg", svg("<g>"), svg("<text>&nbsp;</text>"), svg("")[:-1] + b"><b/>"]
)
def test_what_is_no_xml_is_an_error(text):
    with pytest.raises(ExpatError):
        drawing(text, "title")
