import csv
import os
import threading
from html.parser import HTMLParser

import matplotlib as mpl
import numpy as np
import pytest

from cdpo.errors import UserError
from cdpo.report import (
    build_page,
    normalised_by_size,
    regret_curves,
    save_figure,
    style,
    tables,
    write_figures,
    write_report,
)
from cdpo.report.markup import number
from cdpo.runs import RunFolder
from cdpo.statistics import mean_band

HOSTILE = """_<script>alert("x")</script> & $x_{ 'y' 漢\n</style></svg>"""


def record(agent="cdpo", size=8, env="chain", **changes):
    return {
        "env": env,
        "size": size,
        "agent": agent,
        "settings": {"eta": 0.2, "prior": {"alpha": 1.0}, "period": size},
        "steps": 100,
        "seeds": [0, 1, 2],
        "regret": [3.0, 4.0, 5.0],
        "expected_regret": [2.0, 4.0, 6.0],
        "normalised_regret": [0.1, 0.2, 0.6],
        "value_regret": [7.0, 8.0, 12.0],
        "stuck_fraction": 1 / 3,
        "average_reward": [0.1, 0.1, 0.1],
        "curve": {"steps": [50, 100], "mean": [3.0, 4.0], "low": [2.0, 3.0], "high": [4.0, 5.0]},
        "ledger": None,
        **changes,
    }


def make_run(path, records, **config):
    run = RunFolder.create(path, {"kind": "tabular", "versions": {"cdpo": "1.2.3"}, **config})
    run.write_summary({"results": records, "hardware": {"cpus": 2}, "wall_s": 12.3})
    return run


class Parsed(HTMLParser):
    """The elements, attributes and visible text of a page."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.pieces, self.open, self.cells = [], [], [], [], []
        self.feed(page)
        self.close()
        self.text = " ".join(" ".join(self.pieces).split())

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if tag != "meta":
            self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.pieces.append(data)
        if {"td", "th"} & set(self.open):
            self.cells[-1] += data


def test_a_page_loads_nothing_from_anywhere(tmp_path):
    page = build_page([make_run(tmp_path / "run", [record(size=size) for size in (8, 10)])])
    parsed = Parsed(page)
    assert parsed.open == []
    assert not {"script", "link", "img", "image", "iframe", "object", "embed", "base"} & set(parsed.tags)
    for name, value in parsed.attributes:
        assert not name.startswith("on")
        if name in ("src", "srcset", "href", "xlink:href", "data", "action"):
            assert value.startswith("#")
        assert "url(" not in (value or "") or "url(#" in value
    assert "http:" not in page and "https:" not in page and "@import" not in page
    assert parsed.tags.count("figure") == 2  # regret over steps, normalised regret over size


def test_names_within_a_page_are_unique_and_found(tmp_path):
    run = make_run(tmp_path / "run", [record(size=size) for size in (8, 10)])
    attributes = Parsed(build_page([run])).attributes
    names = [value for name, value in attributes if name == "id"]
    assert len(set(names)) == len(names)
    links = {value[1:] for name, value in attributes if name == "xlink:href"}
    links |= {value[5:-1] for name, value in attributes if name == "clip-path"}
    assert links and links <= set(names)


def test_text_of_a_run_is_text_on_the_page(tmp_path):
    hostile = record(HOSTILE, env=HOSTILE, settings={HOSTILE: HOSTILE, "deep": {HOSTILE: None}})
    run = make_run(tmp_path / "<b>run", [hostile], command=f"cdpo {HOSTILE}", settings={HOSTILE: 1})
    parsed = Parsed(build_page([run]))
    assert parsed.open == [] and "script" not in parsed.tags and "b" not in parsed.tags
    words = " ".join(HOSTILE.split())
    assert f"cdpo {words}" in parsed.text and "<b>run" in parsed.text
    assert words in [" ".join(cell.split()) for cell in parsed.cells]
    save_figure(regret_curves([hostile]), tmp_path / "figure", [])


def test_a_page_says_what_was_run_and_what_came_out(tmp_path):
    ledger = {"updates": 11, "lost_share": 0.31, "mean_loss": 0.0125}
    records = [record(ledger=ledger), record("psrl"), record("psrl", size=None, env="mine.json", seeds=[7])]
    parsed = Parsed(build_page([make_run(tmp_path / "run", records, command="cdpo tabular --env chain")]))
    _, low, high = mean_band(np.array([0.1, 0.2, 0.6]))
    results = ["CDPO", f"0.300 [{number(low)}, {number(high)}]", "4.00", "9.00", "33.3%", "31%", "0.0125"]
    assert parsed.cells[8:15] == results
    assert parsed.cells[15:22] == ["PSRL", *results[1:5], "–", "–"]
    for words in ("cdpo tabular --env chain", "chain, size 8", "mine.json", "4 (0 to 7)", "100", "1.2.3", "12.3 s"):
        assert words in parsed.text
    assert "eta 0.2" in parsed.text and "prior.alpha 1.0" in parsed.text
    assert "period 8 (chain, size 8), none (mine.json)" in parsed.text


def test_without_a_ledger_there_are_no_columns_for_it(tmp_path):
    old = record()
    del old["ledger"]
    cells = Parsed(build_page([make_run(tmp_path / "run", [record(), old])])).cells
    assert cells[:5] == ["agent", "normalised regret", "expected regret", "value regret", "stuck seeds"]
    assert cells[5] == "chain, size 8"


def test_a_seed_without_a_number_does_not_count():
    assert tables.estimate([None, 0.2, 0.4]) == tables.estimate([0.2, 0.4])
    assert tables.estimate([None, 0.2]) == tables.Estimate(0.2, None, None, 1)
    assert tables.estimate([None, None]) == tables.Estimate(None, None, None, 0)


def test_a_page_says_how_many_seeds_a_mean_rests_on(tmp_path):
    records = [
        record(normalised_regret=[None, 0.25, None]),
        record("psrl", normalised_regret=[None] * 3, size=10, stuck_fraction=None),
        record("psrl", curve={"steps": [], "mean": [], "low": [], "high": []}),
        record("psrl", size=12, curve={"steps": [1, 2], "mean": [None, 1], "low": [None, 0], "high": [None, 2]}),
    ]
    cells = Parsed(build_page([make_run(tmp_path / "run", records)])).cells
    assert cells[6:8] == ["CDPO, 1 of 3 seeds", "0.250"]
    assert cells[17:22] == ["PSRL", "–", "4.00", "9.00", "–"]


def test_a_page_says_which_seeds_were_stopped(tmp_path):
    stopped = {"1": f"the reward in block 2 {HOSTILE}"}
    records = [record(normalised_regret=[0.1, None, 0.3], stopped=stopped), record("psrl", stopped={})]
    parsed = Parsed(build_page([make_run(tmp_path / "run", records)]))
    told = "Stopped by bad numbers: seed 1 of chain, size 8, CDPO (the reward in block 2"
    assert parsed.text.count("Stopped by") == 1 and told in parsed.text
    assert "script" not in parsed.tags
    assert "Stopped by" not in Parsed(build_page([make_run(tmp_path / "old", [record()])])).text


def test_several_runs_are_compared_where_they_share_a_cell(tmp_path):
    runs = [
        make_run(tmp_path / "a", [record(), record(size=10)]),
        make_run(tmp_path / "b", [record(), record("psrl", steps=200)]),
        make_run(tmp_path / "c", [record(env="bandit")]),
    ]
    text = Parsed(build_page(runs)).text
    comparison, rest = text[: text.index("kind tabular")], text[text.index("kind tabular") :]
    for words in ("CDPO (a)", "CDPO (b)", "PSRL (b)", "differ in their steps"):
        assert words in comparison and words not in rest
    assert "chain, size 8" in comparison and "size 10" not in comparison and "bandit" not in comparison
    assert rest.count("kind tabular") == 3
    assert "Comparison" not in Parsed(build_page(runs[1:])).text


def test_runs_of_one_name_go_by_their_paths(tmp_path):
    runs = [make_run(tmp_path / parent / "run", [record()]) for parent in ("a", "b")]
    text = Parsed(build_page(runs)).text
    assert all(f"CDPO ({run.path})" in text for run in runs)


def test_where_a_report_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        make_run(tmp_path / name, [record()])
    assert write_report([tmp_path / "a"], None) == tmp_path / "a" / "report.html"
    assert write_report(["a", tmp_path / "a"]).resolve() == tmp_path / "a" / "report.html"  # one run, named twice
    assert write_report(["a", "b"], None).resolve() == tmp_path / "cdpo-report.html"
    out = write_report(["a"], tmp_path / "new" / "page.html")
    assert out.read_text(encoding="utf-8") == (tmp_path / "a" / "report.html").read_text(encoding="utf-8")


def test_what_cannot_be_reported_is_a_users_error(tmp_path):
    (tmp_path / "empty").mkdir()
    unfinished = RunFolder.create(tmp_path / "unfinished", {"kind": "tabular"})
    stranger = make_run(tmp_path / "stranger", [record()], **{"kind": "tabulr"})
    good = make_run(tmp_path / "good", [record()])
    for paths, words in [
        ([], "nothing to report"),
        ([tmp_path / "nowhere"], "no such folder"),
        ([tmp_path / "empty"], "no config.json"),
        ([good.path, unfinished.path], "has not finished"),
        ([stranger.path], "did you mean 'tabular'"),
    ]:
        with pytest.raises(UserError, match=words):
            write_report(paths, None)
    with pytest.raises(UserError, match="cannot write"):
        write_report([good.path], tmp_path / "empty")
    assert os.listdir(tmp_path / "empty") == []


@pytest.mark.parametrize(
    "change",
    [
        {"env": None},
        {"size": "8"},
        {"regret": 1.0},
        {"normalised_regret": ["x"]},
        {"seeds": [None]},
        {"curve": {"steps": [1], "mean": [1], "low": [1]}},
        {"curve": {"steps": [1], "mean": [1], "low": [1], "high": []}},
        {"ledger": {"lost_share": "x"}},
        {"stopped": ["3"]},
    ],
)
def test_a_damaged_record_is_a_users_error(tmp_path, change):
    with pytest.raises(UserError, match="in result 2"):
        build_page([make_run(tmp_path / "run", [record(), record(**change)])])


def test_the_data_behind_a_figure_is_that_of_the_records(tmp_path):
    records = [record(), record("psrl", size=10, normalised_regret=[0.5, None, None])]
    paths = write_figures(make_run(tmp_path / "run", records))
    stems = {"regret", "normalised-by-size"}
    assert {path.name for path in paths} == {stem + end for stem in stems for end in (".png", ".svg", ".csv")}
    assert all(path.parent == tmp_path / "run" / "figures" and path.stat().st_size for path in paths)
    with open(tmp_path / "run" / "figures" / "regret.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    for each in records:
        own = [row for row in rows if row["agent"] == each["agent"]]
        assert {(row["env"], row["size"]) for row in own} == {("chain", str(each["size"]))}
        for key, values in each["curve"].items():
            assert [float(row[key]) for row in own] == values
    with open(tmp_path / "run" / "figures" / "normalised-by-size.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[1].items())[:4] == [("env", "chain"), ("size", "10"), ("agent", "psrl"), ("mean", "0.5")]
    assert list(rows[1].items())[4:] == [("low", ""), ("high", ""), ("seeds", "1")]


def test_a_stem_with_a_point_stays_whole(tmp_path):
    paths = save_figure(regret_curves([record()]), tmp_path / "new" / "eta-0.2", [{"a": 1}, {"b": None}])
    assert [path.name for path in paths] == ["eta-0.2.png", "eta-0.2.svg", "eta-0.2.csv"]
    assert paths[2].read_text() == "a,b\n1,\n,\n"


def test_normalised_regret_needs_two_sizes_of_one_environment():
    with pytest.raises(ValueError, match="two sizes"):
        normalised_by_size([record(), record(env="bandit", size=10), record(size=None)])


def test_drawings_are_the_same_in_every_thread_and_under_any_user_style():
    def draw():
        drawings.append(style.svg(regret_curves([record(), record("mine")])))

    drawings = []
    draw()
    with mpl.rc_context({"font.size": 20, "axes.grid": False, "svg.hashsalt": None}):
        threads = [threading.Thread(target=draw) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert mpl.rcParams["font.size"] == 20
    assert len(drawings) == 4 and len(set(drawings)) == 1
    assert b"date" not in drawings[0].lower()


def test_every_agent_has_its_own_look_and_cdpo_the_strongest():
    agents = [*style._AGENTS, "mine", "yours"]
    looks = style.looks({agent: agent for agent in agents} | {"psrl (other run)": "psrl"})
    assert len({(look.colour, look.dashes) for look in looks.values()}) == len(agents) + 1
    assert all(looks["cdpo"].width > look.width for name, look in looks.items() if name != "cdpo")
    assert style.looks({"psrl": "psrl"})["psrl"] == looks["psrl"]  # whatever else is shown
    assert style.looks({"b": "yours", "a": "mine"})["b"] == looks["yours"]


def test_every_seed_has_a_row():
    from cdpo.report.tables import seed_rows

    regrets = {name: [1.0, 2.0] for name in ("regret", "expected_regret", "normalised_regret", "value_regret")}
    record = {"env": "chain", "size": 3, "agent": "cdpo", "label": "eta 0", "seeds": [4, 5], **regrets}
    rows = seed_rows([record])
    assert [row["seed"] for row in rows] == [4, 5]
    assert rows[1] == {"env": "chain", "size": 3, "agent": "cdpo", "label": "eta 0", "seed": 5} | dict.fromkeys(
        regrets, 2.0
    )


def test_the_interval_of_two_seeds_does_not_press_the_lines_flat():
    wide = {"steps": [50, 100], "mean": [3.0, 4.0], "low": [-90.0, 3.5], "high": [4.0, 95.0]}
    low, high = regret_curves([record(curve=wide)]).axes[0].get_ylim()
    assert low == 0.0 and 4.0 < high <= 6.0
    low, high = regret_curves([record()]).axes[0].get_ylim()
    assert low <= 2.0 and high >= 5.0  # the usual one is seen as a whole
