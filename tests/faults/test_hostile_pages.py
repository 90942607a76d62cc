"""What a stranger's folder may say, and what a browser makes of the page about it."""

import contextlib
import csv
import http.server
import json
import os
import re
import shutil
import subprocess
import threading
from html.parser import HTMLParser

import pytest

from cdpo.errors import UserError
from cdpo.report import build_page
from cdpo.runs import RunFolder

FAR = "http://127.0.0.1:9"  # where nothing is asked for; the browser's test puts its server in its place
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

TEXTS = (
    "<script>fetch('{far}/script')</script>",
    "<img src={far}/image onerror=\"fetch('{far}/error')\">",
    '<meta http-equiv="refresh" content="0;url={far}/refresh">',
    '"><iframe src="{far}/frame"></iframe>',
    "' onmouseover='fetch(`{far}/attribute`)' x='",
    "</title></style></code></pre><form action='{far}/form'><input autofocus></form>",
    "</style><style>@import url({far}/sheet);*{background:url({far}/background)}</style>",
    "<base href='{far}/'><link rel=stylesheet href='{far}/link'>",
    "--><!--<svg><script href='{far}/svg'/>",
    "<a href=\"javascript:fetch('{far}/link')\" ping='{far}/ping'>go</a>",
    "&lt;script&gt; &#60;script&#62; <![CDATA[<script>]]> \x00<\x00script>",
    "<object data='{far}/object'></object><embed src='{far}/embed'><video src='{far}/video' autoplay></video>",
)

HEAD = '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 90 50">'
DRAWINGS = {
    "script": "<script>fetch('{far}/d1')</script>",
    "script-from-far": "<script xlink:href='{far}/d2'/>",
    "foreign-object": "<foreignObject><iframe xmlns='http://www.w3.org/1999/xhtml' src='{far}/d3'/></foreignObject>",
    "refresh": "<meta http-equiv='refresh' content='0;url={far}/d4'/>",
    "frame": "<iframe src='{far}/d5'/>",
    "use": "<use xlink:href='{far}/d6#a'/>",
    "use-of-two": "<use href='{far}/d7#a'/>",
    "image": "<image href='{far}/d8' width='9' height='9'/>",
    "linked-image": "<image xlink:href='{far}/d9' width='9' height='9'/>",
    "event": "<g onload=\"fetch('{far}/d10')\"/>",
    "animation": "<use><animate attributeName='href' values='{far}/d11#a' dur='1s'/></use>",
    "set": "<image><set attributeName='href' to='{far}/d12'/></image>",
    "form": "<form action='{far}/d13'><input name='a'/></form>",
    "link": "<a href=\"javascript:fetch('{far}/d14')\"><text>go</text></a>",
    "fill": "<path d='M 0 0' style='fill: url({far}/d15#a)'/>",
    "cursor": "<path d='M 0 0' style='cursor: url({far}/d16), auto'/>",
    "clip": "<g clip-path='url({far}/d17#a)'/>",
    "filter": "<filter id='f'><feImage href='{far}/d18'/></filter>",
    "sheet": "<?xml-stylesheet href='{far}/d19'?>",
    "style-outside": "<style>@import url({far}/d20);</style>",
    "end-of-style": "<defs><style><b/></style></defs>",
    "text-outside": "&lt;script>fetch('{far}/d22')&lt;/script>",
}
# Shown without what they hold of these, or with it as text.
HARMLESS = {
    "sheet-inside": "<defs><style>@import url({far}/e1); * {background: url({far}/e2)}</style></defs>",
    "end-of-style-as-text": "<defs><style><![CDATA[</style><img src='{far}/e3'>]]></style></defs>",
    "words": "<text>&lt;img src='{far}/e4'></text>",
    "data": "<text><![CDATA[</text></svg><script>fetch('{far}/e5')</script>]]></text>",
    "remark": "<!-- <script>fetch('{far}/e6')</script> --><text>--&gt;</text>",
}
WHOLE = {
    "entities": "<!DOCTYPE svg [<!ENTITY a '<script/>'>]>" + HEAD + "<text>&a;</text></svg>",
    "far-declarations": "<!DOCTYPE svg [<!ENTITY % a SYSTEM '{far}/w1'> %a;]>" + HEAD + "</svg>",
    "events-by-declaration": "<!DOCTYPE svg [<!ATTLIST svg onload CDATA 'fetch(`{far}/w2`)'>]>" + HEAD + "</svg>",
    "page": "<html xmlns='http://www.w3.org/1999/xhtml'>" + HEAD + "</svg><img src='{far}/w3'/></html>",
    "event-of-all": HEAD.replace("<svg ", "<svg onload=\"fetch('{far}/w4')\" ") + "</svg>",
    "wide": HEAD.replace("90 50", "90 50' style='background:url({far}/w5)") + "</svg>",
}
NO_XML = {
    "unclosed": HEAD + "<g><text>'",
    "attributes-without-quotes": HEAD + "<g onload=alert(1)></g></svg>",
    "more-after": HEAD + "</svg><script>fetch('{far}')</script>",
}

ELEMENTS = re.findall(
    r"\w+",
    """html head meta title style body main header footer section h1 h2 h3 h4 p pre code dl dt dd div span i details
    summary figure figcaption ul li table thead tbody tfoot tr th td svg defs g path use text tspan clippath rect
    line""",
)
ATTRIBUTES = re.findall(
    r"[\w:-]+",
    """charset name content http-equiv lang class style tabindex role aria-label aria-hidden scope colspan width height
    viewbox id d x y x1 x2 y1 y2 transform clip-path xlink:href stroke stroke-width stroke-dasharray""",
)
METAS = {
    (("charset", "utf-8"),),
    (("name", "viewport"), ("content", "width=device-width, initial-scale=1")),
    (("name", "color-scheme"), ("content", "light dark")),
}


class Checked(HTMLParser):
    """Fails at anything in a page that our pages do not have."""

    def __init__(self, page):
        super().__init__()
        self.metas, self.sheets, self.text = [], [], ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        assert tag in ELEMENTS, tag
        for name, value in attributes:
            assert name in ATTRIBUTES, name
            if name == "xlink:href":
                assert re.fullmatch(r"#[\w-]+", value)
            elif name == "clip-path":
                assert re.fullmatch(r"url\(#[\w-]+\)", value)
            elif name == "style":
                assert re.fullmatch(r"[\w:;#,'. -]*", value) and "url" not in value
        if tag == "meta":
            self.metas.append(tuple(attributes))
        if tag == "style":
            self.sheets.append("")

    def handle_data(self, data):
        if self.lasttag == "style" and not data.isspace():
            self.sheets[-1] += data
        self.text += data


def text_of(far):
    return " ".join(TEXTS).replace("{far}", far)


def trained(path, far):
    """A training run whose every word is hostile."""
    evil = text_of(far)
    config = {"kind": "train", "settings": {"rule": {evil: evil, "list": [evil]}, evil: {evil: evil}, "x": evil}}
    config |= dict.fromkeys(("task", "agent", "solver", "learner", "preset", "command"), evil)
    run = RunFolder.create(path, {**config, "versions": {evil: evil}, "hardware": {evil: {evil: evil}}})
    words = {"model_error": evil, "coverage_map_test": [evil], evil: evil}
    run.extend([{"seed": 0, "episode": place, "eval_return": 2.0 * place, **words} for place in range(3)])
    run.write_summary({"stopped": {"0": evil, "1": evil, evil: evil}, "versions": {evil: evil}, "wall_s": evil})
    return run


def tabular(path, far):
    """A tabular run whose every word is hostile."""
    evil = text_of(far)
    config = {"kind": "tabular", "command": evil, "settings": {evil: evil, "b": {evil: evil}}, "versions": {evil: evil}}
    run = RunFolder.create(path, config)
    record = {
        **{"env": evil, "size": 8, "agent": evil, "label": evil, "settings": {evil: {evil: [evil]}}, "steps": 9},
        **{"seeds": [0], "stuck_fraction": 0.0, "curve": {key: [1.0, 2.0] for key in ("steps", "mean", "low", "high")}},
        **{key: [1.0] for key in ("regret", "expected_regret", "normalised_regret", "value_regret")},
    }
    run.write_summary({"results": [record, {**record, "size": 9}], "hardware": {evil: evil}})
    return run


def reproduced(path, far, drawings=None):
    """A reproduction with hostile tables and drawings."""
    evil = text_of(far)
    if drawings is None:
        drawings = {name: HEAD + inner + "</svg>" for name, inner in (DRAWINGS | HARMLESS).items()} | WHOLE
    config = {"kind": "reproduction", "command": evil, "figure": evil, "scale": evil, "versions": {evil: evil}}
    run = RunFolder.create(path, {**config, "hardware": {evil: evil}})
    names = [f"{name}.svg" for name in drawings]
    for name, text in zip(names, drawings.values(), strict=True):
        (run.figures / name).write_text(text.replace("{far}", far))
    with open(run.figures / "table.csv", "w", newline="") as file:
        csv.writer(file).writerows([[evil, "b"], [evil, evil], [evil]])
    shutil.copy(run.figures / "table.csv", run.figures / "<img src=x onerror=alert(1)>.csv")
    run.extend([{"wall_s": 1.0, evil: evil}])
    run.write_summary({"figures": [*names, "table.csv", "<img src=x onerror=alert(1)>.csv"]})
    return run


MAKERS = {"train": trained, "tabular": tabular, "reproduction": reproduced}


@pytest.mark.parametrize("kind", MAKERS)
def test_a_page_of_hostile_words_has_our_elements_alone(tmp_path, kind):
    runs = [MAKERS[kind](tmp_path / "<script>a", FAR), MAKERS[kind](tmp_path / "<b onclick='x'>", FAR)]
    for page in (build_page(runs[:1]), build_page(runs)):
        checked = Checked(page)
        assert set(checked.metas[:3]) == METAS and len(checked.metas) == 4
        assert [name for name, _ in checked.metas[3]] == ["http-equiv", "content"]
        assert checked.metas[3][0][1] == "Content-Security-Policy" and "form-action 'none'" in checked.metas[3][1][1]
        assert len(checked.sheets) == 1 and FAR not in checked.sheets[0] and "@import" not in checked.sheets[0]
        assert f"fetch('{FAR}/script')" in checked.text  # as words


def test_drawings_that_are_not_ours_are_named_and_the_rest_is_shown(tmp_path):
    page = build_page([reproduced(tmp_path / "run", FAR)])
    for name in (*DRAWINGS, *WHOLE):
        assert f"figures/{name}.svg is not shown, as it holds " in page
        assert f'aria-label="{name.replace("-", " ")}"' not in page
    for name in HARMLESS:
        assert f'aria-label="{name.replace("-", " ")}"' in page
    assert page.count("is not shown") == len(DRAWINGS) + len(WHOLE) and "<h4>table</h4>" in page


@pytest.mark.parametrize("name", NO_XML)
def test_a_drawing_that_is_no_xml_is_told_in_one_line(tmp_path, name):
    run = reproduced(tmp_path / "run", FAR, {name: NO_XML[name]})
    with pytest.raises(UserError, match=rf"cannot read .*{name}\.svg.*draw it again"):
        build_page([run])


@pytest.mark.parametrize("what", ["link", "linked folder", "pipe", "folder", "far name", "no list", "no names"])
def test_figures_that_are_no_files_of_the_folder_are_not_opened(tmp_path, what, monkeypatch):
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "words.csv").write_text("secret\n1\n")
    run = reproduced(tmp_path / "run", FAR, {})
    names = ["words.csv"]
    if what == "link":
        (run.figures / "words.csv").symlink_to(tmp_path / "secret" / "words.csv")
    elif what == "linked folder":
        shutil.rmtree(run.figures)
        (run.path / "figures").symlink_to(tmp_path / "secret")
    elif what == "pipe":
        os.mkfifo(run.figures / "words.csv")
    elif what == "folder":
        (run.figures / "words.csv").mkdir()
    else:
        names = {"far name": ["../../secret/words.csv"], "no list": {"words.csv": 1}, "no names": [["words.csv"], 7]}[
            what
        ]
    run.write_summary({"figures": names})
    with pytest.raises(UserError) as told:
        build_page([run])
    assert str(told.value).isprintable()


@pytest.mark.parametrize(
    "table", ["a\n1e999\n", "a\n" + "9" * 5000 + "\n", "a\n\n\n--1\n", "", "\n\n", "a,b\n1\n²,٣\n"]
)
def test_tables_of_any_numbers_are_shown(tmp_path, table):
    run = reproduced(tmp_path / "run", FAR, {})
    (run.figures / "table.csv").write_text(table)
    assert "<h4>table</h4>" in build_page([run])


@pytest.mark.parametrize("table", [b"\xff\xfe", b"a\n" + b"x" * 200_000])
def test_tables_that_are_none_are_told_in_one_line(tmp_path, table):
    run = reproduced(tmp_path / "run", FAR, {})
    (run.figures / "table.csv").write_bytes(table)
    with pytest.raises(UserError, match=r"cannot read .*table\.csv"):
        build_page([run])


def test_what_is_told_to_go_on_with_does_not_command_the_terminal(tmp_path):
    run = RunFolder.create(tmp_path / "run", {"kind": "reproduction", "command": "cdpo \x1b]0;mine\x07 \u202e\n"})
    with pytest.raises(UserError, match="go on with: cdpo") as told:
        build_page([run])
    assert str(told.value).isprintable()


def test_settings_in_settings_without_end_are_shown_as_far_as_one_reads(tmp_path):
    deep = {"a": 1}
    for _ in range(200):
        deep = {"b": deep, "c": [[[[[[[[[[[[[[[[[[[[[[["x"]]]]]]]]]]]]]]]]]]]]]]]}
    run = trained(tmp_path / "run", FAR)
    text = {"kind": "train", "settings": {"rule": deep}}
    (run.path / "config.json").write_text(json.dumps(text))
    assert "…" in build_page([run]) and "b.b.b.b.b.b.b.b.b.b.b" not in build_page([run])


def test_a_folder_of_few_lines_is_no_table_of_many(tmp_path):
    run = RunFolder.create(tmp_path / "run", {"kind": "train"})
    run.extend([{"seed": place, "episode": place} for place in range(4000)])
    with pytest.raises(UserError, match="4,000 seeds and 4,000 episodes"):
        build_page([run])


# --- In a browser -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def listening():
    """A server that keeps what it is asked for."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<h1>far away</h1>")

        do_POST = do_HEAD = do_OPTIONS = do_GET

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


def opened(page, profile):
    """What a browser has of a page after some seconds of its own time."""
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
    flags += ["--disable-background-networking", "--disable-component-update", f"--user-data-dir={profile}"]
    flags += ["--virtual-time-budget=5000", "--dump-dom"]
    done = subprocess.run([CHROMIUM, *flags, page.as_uri()], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.extra
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
@pytest.mark.parametrize("what", [*MAKERS, "refresh", "foreign-object"])
def test_a_browser_asks_for_nothing_and_stays_on_the_page(tmp_path, what):
    page = tmp_path / "page.html"
    with listening() as (far, asked):
        if what in MAKERS:
            runs = [MAKERS[what](tmp_path / name, far) for name in ("one", "two")]
        else:  # by itself: others may be in its way
            runs = [reproduced(tmp_path / "one", far, {what: HEAD + DRAWINGS[what] + "</svg>"})]
        page.write_text(build_page(runs))
        shown = opened(page, tmp_path / "profile")
        assert asked == []
    assert "<h1>cdpo report</h1>" in shown and shown.rstrip().endswith("</html>")
    assert "far away" not in Checked(shown).text


@pytest.mark.extra
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
@pytest.mark.parametrize("attack", [TEXTS[0], TEXTS[2], TEXTS[3], HEAD + DRAWINGS["foreign-object"] + "</svg>"])
def test_the_attacks_do_reach_out_of_a_page_that_does_not_escape_them(tmp_path, attack):
    with listening() as (far, asked):
        page = tmp_path / "page.html"
        page.write_text("<!doctype html><title>x</title>" + attack.replace("{far}", far))
        opened(page, tmp_path / "profile")
        assert asked
