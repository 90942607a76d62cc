import csv
import math
import re
import shlex
from html.parser import HTMLParser

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import trim_mean

from cdpo.dynamics.calibration import LEVELS
from cdpo.errors import UserError
from cdpo.report import build_page, figures, style, tables, training, write_figures, write_report
from cdpo.report.markup import number
from cdpo.report.training.pictures import PICTURES, rows_of
from cdpo.report.training.run import Run, lost_share
from cdpo.runs import RunFolder

HOSTILE = """_<script>alert("x")</script> & $x_{ 'y' 漢\n</style></svg>"""
DIAGNOSTICS = {
    "improvement": 2.0,
    "improvement_pi": 0.5,
    "model_error": 0.5,
    "kl_bound": 0.1,
    "kl_spent": 0.08,
    "unsettled_reference": 0.1,
    "unsettled_sample": 0.2,
    "scale": 1.5,
    **{f"coverage{p}_{where}{raw}": p / 100 for p in (50, 90) for where in ("test", "new") for raw in ("", "_raw")},
    "coverage_map_test": list(LEVELS),
    "coverage_map_new": [level / 2 for level in LEVELS],
}


def line(seed, episode, evaluated=None, change=None, **more):
    """A line of metrics as a baseline writes it."""
    return {
        "seed": seed,
        "episode": episode,
        "env_steps": 200 * (episode + 1),
        "return": -100.0 + episode,
        "eval_return": evaluated,
        "eval_change": change,
        "episode_length": 200,
        "terminated": False,
        "wall_s": 10.0 * (episode + 1),  # since the beginning of the run
        **more,
    }


def seed_lines(seed, evaluations, **more):
    """Episode 0, and one with an evaluation for each of those given; `more` from episode 1 on."""
    changes = [None, *np.diff(evaluations).tolist()]
    later = enumerate(zip(evaluations, changes, strict=True), start=1)
    return [line(seed, 0), *(line(seed, episode, *pair, **more) for episode, pair in later)]


def make_run(path, lines, summary=None, **config):
    told = {"kind": "train", "task": "pendulum-swingup", "agent": "cdpo", "solver": "dyna", "episodes": 20}
    run = RunFolder.create(path, {**told, **config})
    run.extend(lines)
    if summary is not None:
        run.write_summary({"stopped": {}, "wall_s": 321.0, **summary})
    return run


class Parsed(HTMLParser):
    """The elements, headings, cells and visible text of a page; fails where elements are not nested well."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.pieces, self.open, self.cells, self.heads, self.labels = [], [], [], [], [], []
        self.feed(page)
        self.close()
        assert self.open == []
        self.text = " ".join(" ".join(self.pieces).split())

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.labels += [value for name, value in attributes if name == "aria-label"]
        if tag != "meta":
            self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.pieces.append(data)
        if {"td", "th"} & set(self.open):
            self.cells[-1] += data
        if "h3" in self.open:
            self.heads.append(data)


def table_after(cells, first):
    """The cells from the one that reads `first`."""
    return cells[cells.index(first) :]


def read_csv(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_the_table_of_seeds_holds_what_one_computes_by_hand(tmp_path):
    lines = seed_lines(0, [10.0, 40.0, 20.0, 30.0], kl_bound=0.1, kl_spent=0.105)
    lines += seed_lines(1, [5.0, 6.0, 7.0, 8.0], kl_bound=0.1, kl_spent=0.08)
    lines[3]["kl_spent"] = 0.12
    parsed = Parsed(build_page([make_run(tmp_path / "run", lines, {})]))
    mean, middle = tables.estimate([30.0, 7.0]), tables.interquartile([30.0, 7.0])
    cells = table_after(parsed.cells, "seed")
    columns = ["seed", "final evaluation", "best evaluation", "environment steps", "time", "KL above 1.1 × bound"]
    assert cells[:7] == [*columns, "iterations that lost return"]
    assert cells[7:14] == ["0", "30.0", "40.0", "1,000", "50.0 s", "25%", "33.3%"]
    assert cells[14:21] == ["1", "7.00", "8.00", "1,000", "50.0 s", "0%", "0%"]
    assert cells[21:23] == ["mean", f"18.5 [{number(mean.low)}, {number(mean.high)}]"]
    assert cells[23].startswith("24.0 [") and cells[24:28] == ["", "", "12.5%", "16.7%"]
    assert cells[28:30] == ["interquartile mean", f"18.5 [{number(middle.low)}, {number(middle.high)}]"]
    assert "final evaluation 18.5" in parsed.text and "5.3 min" in parsed.text


@pytest.mark.parametrize(
    ("evaluations", "share"),
    [
        ([0.0, 100.0, 99.0], 0.0),  # one per cent of the range, and no more
        ([0.0, 100.0, 98.9], 0.5),
        ([-1000.0, 0.0, -11.0, -12.0], 1 / 3),  # by the range, whatever the sign
        ([50.0, 49.9, 100.0, 99.8], 1 / 3),  # the first fall was all the range by then
        ([5.0, 5.0, 5.0], 0.0),
        ([1.0, 2.0, 3.0], 0.0),
        ([3.0, 2.0], 1.0),
        ([3.0], None),
        ([], None),
    ],
)
def test_an_iteration_has_lost_by_more_than_a_hundredth_of_the_range_so_far(evaluations, share):
    assert lost_share(np.array(evaluations)) == (share if share is None else pytest.approx(share))


def test_the_page_says_what_a_lost_iteration_is_where_it_counts_them(tmp_path):
    settled = make_run(tmp_path / "settled", seed_lines(0, [0.0, 100.0, 99.5, 98.0]), {})
    parsed = Parsed(build_page([settled]))
    assert "33.3%" in table_after(parsed.cells, "iterations that lost return")
    assert "lost return if the evaluation fell by more than 1% of the range" in parsed.text
    short = make_run(tmp_path / "short", seed_lines(0, [1.0]), {})
    assert "lost return" not in Parsed(build_page([short])).text


def test_the_interquartile_mean_is_that_of_the_middle_half():
    for seeds in range(1, 12):
        values = np.random.default_rng(seeds).normal(size=seeds)
        found = tables.interquartile(values)
        assert math.isclose(found.mean, trim_mean(values, 0.25))
        assert found.low is None if seeds == 1 else found.low <= found.mean <= found.high
    assert tables.interquartile([None, math.nan]) == tables.Estimate(None, None, None, 0)
    assert tables.interquartile([1.0, 2.0, None, 90.0]) == tables.interquartile([1.0, 2.0, 90.0])


def test_a_curve_is_the_estimate_at_every_point():
    each = np.array([[1.0, 2.0, math.nan, math.nan], [3.0, math.nan, math.nan, 1.0], [8.0, 1.0, math.nan, math.nan]])
    curve = tables.Curve.of(np.arange(4.0), each)
    assert curve.x.tolist() == [0.0, 1.0, 3.0] and curve.seeds.tolist() == [3, 2, 1]
    for place, column in zip(range(3), each.T[[0, 1, 3]], strict=True):
        found = tables.estimate(column)
        assert curve.mean[place] == found.mean
        if found.low is None:
            assert np.isnan(curve.low[place]) and np.isnan(curve.high[place])
        else:
            np.testing.assert_allclose([curve.low[place], curve.high[place]], [found.low, found.high])


def test_a_full_run_has_all_its_sections(tmp_path):
    lines = [each for seed in range(3) for each in seed_lines(seed, [1.0, 2.0, 3.0], **DIAGNOSTICS)]
    settings = {"rule": {"name": "cdpo", "kl": 0.1}, "loop": {"evaluate": 1}, "sac": {"hidden": [256, 256]}}
    config = {"command": "cdpo train pendulum-swingup", "settings": settings, "versions": {"jax": "9.9"}}
    parsed = Parsed(build_page([make_run(tmp_path / "run", lines, {}, **config)]))
    sections = ["Learning", "Results", "Improvement ledger", "Calibration", "How unsettled the model is"]
    assert parsed.heads == [*sections, "Settings", "Versions and hardware"]
    assert parsed.tags.count("figure") == 4 and parsed.tags.count("details") == 1
    assert sum(label.endswith("pendulum-swingup") for label in parsed.labels) == 1
    assert len([label for label in parsed.labels if " over iteration: " in label]) == 5 + 3 + 1
    for words in ("cdpo train pendulum-swingup", "kl 0.1", "hidden 256, 256", "3 (0 to 2)", "the bound", "9.9"):
        assert words in parsed.text
    assert "not finished" not in parsed.text and "script" not in parsed.tags


def test_what_was_not_measured_is_left_out(tmp_path):
    greedy = {key: value for key, value in DIAGNOSTICS.items() if not key.startswith("kl")}
    parsed = Parsed(
        build_page([make_run(tmp_path / "greedy", seed_lines(0, [1.0, 2.0], **greedy), {}, agent="greedy")])
    )
    assert "the bound" not in parsed.text and not any("KL" in each for each in parsed.cells + parsed.labels)
    parsed = Parsed(build_page([make_run(tmp_path / "sac", seed_lines(0, [1.0, 2.0]), {}, agent="sac")]))
    assert parsed.heads == ["Learning", "Results", "Improvement ledger", "Versions and hardware"]
    assert parsed.tags.count("figure") == 2


def test_without_a_bound_nothing_is_held_against_it(tmp_path):
    lines = seed_lines(0, [1.0, 2.0], kl_bound=0.1, kl_spent=3.0)
    run = make_run(tmp_path / "run", lines, {}, settings={"rule": {"name": "cdpo", "schedule": "none"}})
    parsed = Parsed(build_page([run]))
    assert "the bound" not in parsed.text and "KL above 1.1 × bound" not in parsed.cells
    assert any("KL" in label for label in parsed.labels)  # what was spent is shown all the same


@pytest.mark.slow(besides="lines5")
@pytest.mark.parametrize(
    "lines",
    [
        [line(0, 0)],
        [line(0, 0), line(1, 0)],
        [line(0, 0), line(0, 1, 5.0, None, **DIAGNOSTICS)],
        [line(0, 0), line(0, 1, **dict.fromkeys(DIAGNOSTICS))],
        [{"seed": 0, "episode": 0}],
        [line(0, 0), line(0, 1, 1e300, math.nan, model_error=True, coverage_map_test=[0.1], scale="x")],
    ],
)
def test_a_run_of_very_little_has_a_page_and_figures(tmp_path, lines):
    run = make_run(tmp_path / "run", lines, {})
    parsed = Parsed(build_page([run]))
    assert "Results" in parsed.heads and "nan" not in parsed.text and "inf" not in parsed.cells
    assert all(path.stat().st_size for path in write_figures(run))


def test_a_stopped_seed_counts_with_what_it_had(tmp_path):
    lines = seed_lines(0, [1.0, 2.0, 3.0, 4.0], **DIAGNOSTICS) + seed_lines(1, [9.0], **DIAGNOSTICS)
    run = make_run(tmp_path / "run", lines, {"stopped": {"1": "the model in iteration 2", "2": "the data"}})
    parsed = Parsed(build_page([run]))
    cells = table_after(parsed.cells, "seed")
    assert cells[7] == "stopped" and cells[8:11] == ["0", "3.00", "4.00"] and cells[15] == ""
    assert cells[16:21] == ["1", "9.00", "9.00", "400", "20.0 s"] and cells[23] == "the model in iteration 2"
    assert cells[24:32] == ["2", "–", "–", "–", "–", "–", "–", "the data"]
    assert cells[33].startswith("6.00 [")
    assert "seed 1 (the model in iteration 2); seed 2 (the data)" in parsed.text
    rows = [row for row in rows_of(Run.read(run), ["eval_return"]) if row["episode"] == 2]
    assert rows[0] | {"mean": 2.0, "seeds": 1, "seed 0": 2.0, "seed 1": None, "seed 2": None} == rows[0]


def test_an_unfinished_run_says_so_and_how_to_go_on(tmp_path):
    run = make_run(tmp_path / "my run", seed_lines(0, [1.0, 2.0]))
    parsed = Parsed(build_page([run]))
    assert "This run is not finished" in parsed.text and "episodes 0 to 2 of 20" in parsed.text
    assert f"cdpo resume {shlex.quote(str(run.path))}" in parsed.text
    with open(run.path / "metrics.jsonl", "a") as file:
        file.write('{"seed": 0, "epis')  # a line that is being written
    assert Parsed(build_page([run])).text == parsed.text
    run.write_summary({"returns": [[-100.0, -99.0]]})  # of a shorter run, which went on
    assert "This run is not finished" in Parsed(build_page([run])).text
    run.write_summary({"returns": [[-100.0, -99.0, -98.0]]})
    assert "This run is not finished" not in Parsed(build_page([run])).text
    empty = make_run(tmp_path / "empty", [])
    parsed = Parsed(build_page([empty]))
    assert "It has measured nothing yet" in parsed.text and "figure" not in parsed.tags
    assert write_figures(empty) == []


def test_the_axis_is_of_steps_unless_seeds_differ_in_them(tmp_path):
    even = make_run(tmp_path / "even", seed_lines(0, [1.0, 2.0]) + seed_lines(1, [1.0]), {})
    lines = seed_lines(0, [1.0, 2.0]) + seed_lines(1, [1.0, 2.0])
    lines[-1]["env_steps"] -= 7
    uneven = make_run(tmp_path / "uneven", lines, {})
    assert "return over environment steps: pendulum-swingup" in Parsed(build_page([even])).labels
    assert Run.read(even).steps().tolist() == [200, 400, 600]
    assert any(label.startswith("return over episodes") for label in Parsed(build_page([uneven])).labels)
    assert Run.read(uneven).steps() is None
    labels = Parsed(build_page([even, uneven])).labels
    assert sum(label.startswith("evaluation return over episodes") for label in labels) == 1


def test_the_map_of_coverage_is_that_of_the_last_iteration(tmp_path):
    lines = seed_lines(0, [1.0, 2.0], coverage_map_test=list(LEVELS)) + seed_lines(1, [1.0])
    lines[2]["coverage_map_test"] = [level**2 for level in LEVELS]
    curve = Run.read(make_run(tmp_path / "run", lines, {})).map("coverage_map_test")
    np.testing.assert_allclose(curve.x, LEVELS)
    np.testing.assert_allclose(curve.mean, np.square(LEVELS))
    assert curve.seeds.tolist() == [1] * len(LEVELS)


@pytest.mark.slow
def test_the_data_behind_the_figures_is_that_of_the_lines(tmp_path):
    lines = seed_lines(0, [1.0, 2.0], **DIAGNOSTICS) + seed_lines(4, [3.0, 6.0], **DIAGNOSTICS)
    run = make_run(tmp_path / "run", lines, {})
    paths = write_figures(run)
    stems = {"learning", "ledger", "calibration", "unsettled"}
    assert {path.name for path in paths} == {stem + end for stem in stems for end in (".png", ".svg", ".csv")}
    assert all(path.parent == run.path / "figures" for path in paths)
    rows = [row for row in read_csv(run.figures / "learning.csv") if row["quantity"] == "eval_return"]
    expected = [("1", "400", "2.0", "1.0", "3.0", "2"), ("2", "600", "4.0", "2.0", "6.0", "2")]
    keys = ("episode", "env_steps", "mean", "seed 0", "seed 4", "seeds")
    assert [tuple(row[key] for key in keys) for row in rows] == expected
    assert len([row for row in read_csv(run.figures / "learning.csv") if row["quantity"] == "return"]) == 3
    kinds = {row["quantity"] for row in read_csv(run.figures / "ledger.csv")}
    assert kinds == {"improvement", "improvement_pi", "eval_change", "model_error", "kl_spent", "kl_bound"}
    maps = [row for row in read_csv(run.figures / "calibration.csv") if row["quantity"] == "coverage_map_new"]
    assert [float(row["level"]) for row in maps] == list(LEVELS)
    assert [float(row["mean"]) for row in maps] == [level / 2 for level in LEVELS]


def test_text_of_a_run_is_text_on_the_page(tmp_path):
    lines = seed_lines(0, [1.0, 2.0], **DIAGNOSTICS)
    settings = {"rule": {HOSTILE: HOSTILE}, HOSTILE: {HOSTILE: 1}, "solver": HOSTILE}
    config = {"task": HOSTILE, "agent": HOSTILE, "preset": HOSTILE, "command": f"cdpo {HOSTILE}", "settings": settings}
    runs = [make_run(tmp_path / "<b>run", lines, {"stopped": {"0": HOSTILE}}, **config)]
    runs.append(make_run(tmp_path / "<b>other", seed_lines(0, [1.0, 2.0]), **config))
    page = build_page(runs)
    parsed = Parsed(page)
    assert not {"script", "b"} & set(parsed.tags)
    words = " ".join(HOSTILE.split())
    assert f"cdpo {words}" in parsed.text and "<b>run" in parsed.text
    assert words in [" ".join(cell.split()) for cell in parsed.cells]
    assert not re.search(r"https?:", page)
    write_figures(runs[1])


def test_runs_of_one_task_are_compared(tmp_path):
    short, long = seed_lines(0, [1.0, 2.0]), seed_lines(0, [1.0, 2.0, 3.0])
    runs = [
        make_run(tmp_path / "a", short + seed_lines(1, [3.0, 4.0]), {}),
        make_run(tmp_path / "b", long),
        make_run(tmp_path / "c", short, {}, agent="psrl"),
        make_run(tmp_path / "d", short, {}, task="cheetah"),
        make_run(tmp_path / "e", short, {}, task="cheetah", agent="psrl"),
        make_run(tmp_path / "f", short, {}, task="hopper"),
    ]
    parsed = Parsed(build_page(runs))
    comparison = parsed.text[: parsed.text.index("kind train")]
    assert "Some went further than others" in comparison and "Some of the runs are not finished" in comparison
    assert "hopper" not in comparison
    found = tables.interquartile([1.5, 3.5])
    interval = f"2.50 [{number(found.low)}, {number(found.high)}]"
    assert parsed.cells[6:9] == ["pendulum-swingup", "CDPO (a)", interval]
    assert parsed.cells[10:13] == ["3.00", "2", "600"]
    assert parsed.cells[13:15] == ["CDPO (b), not finished", "2.00"]
    assert [parsed.cells[place] for place in (19, 25, 26, 32)] == ["PSRL", "cheetah", "CDPO", "PSRL"]
    assert "Comparison" not in Parsed(build_page([runs[0], runs[5]])).text
    assert "Some went further" not in Parsed(build_page([runs[0], runs[2]])).text


def test_a_line_that_goes_by_its_agent_has_the_agents_look(tmp_path):
    lines = seed_lines(0, [1.0, 2.0])
    names = {"a": "pendulum-swingup", "b": "pendulum-swingup", "c": "cheetah"}
    runs = [make_run(tmp_path / name, lines, {}, task=task) for name, task in names.items()]
    runs.append(make_run(tmp_path / "d", lines, {}, task="cheetah", agent="psrl"))
    page = training.comparison({run.path.name: run for run in runs})
    legend = re.findall(r'<li>.*?stroke="(#\w+)".*?</svg>(.*?)</li>', page)
    assert [name for _, name in legend] == ["CDPO (a)", "CDPO (b)", "CDPO", "PSRL"]
    assert legend[2][0] == style.looks({"cdpo": "cdpo"})["cdpo"].colour


class Counted(dict):
    """Lines that count how often one of them is looked at."""

    looks = 0

    def __iter__(self):
        for key in super().__iter__():
            self.looks += 1
            yield key

    def get(self, *arguments):
        self.looks += 1
        return super().get(*arguments)


@pytest.mark.parametrize("seeds", [1, 3])
def test_rows_and_figures_look_at_a_line_as_often_however_long_the_run_is(tmp_path, seeds):
    folder = make_run(tmp_path / "run", [line(0, 0)])

    def looks(episodes):
        pairs = [(seed, episode) for seed in range(seeds) for episode in range(episodes)]
        lines = Counted({pair: line(*pair, float(pair[1]), **DIAGNOSTICS) for pair in pairs})
        run = Run(folder, folder.config, {}, lines, {})
        assert None not in [make(run) for make in PICTURES.values()]
        assert len(rows_of(run, ["return", "model_error"])) == 2 * episodes
        return lines.looks / len(pairs)

    assert looks(160) <= looks(40)


def test_of_a_long_run_no_more_is_drawn_than_a_reader_sees(tmp_path):
    episodes, peak = 3000, 1234
    lines = [line(seed, episode, float(seed)) for seed in range(2) for episode in range(episodes)]
    for each in lines:
        each["eval_return"] += 50.0 * (each["episode"] == peak)
    run = Run.read(make_run(tmp_path / "run", lines, {}))
    panel = PICTURES["Learning"](run).panels[0]
    axes = Axes(Figure(), (0, 0, 1, 1))
    panel.draw(axes)
    drawn = [shown.get_xdata() for shown in axes.lines]
    assert len(drawn) == 4 and max(map(len, drawn)) <= 402
    for steps in (drawn[0], *drawn[2:]):  # of the mean and of both seeds: the ends and the peak
        assert {200, 200 * episodes, 200 * (peak + 1)} <= set(steps.tolist())
    assert len(rows_of(run, ["eval_return"])) == episodes


def test_points_that_are_not_known_are_left_out_of_what_is_seen():
    values = np.full(10_000, np.nan)
    values[[17, 5000, 5001]] = 1.0, -2.0, 3.0
    assert {0, 17, 5000, 5001, 9999} <= set(figures.places_seen(values).tolist())


@pytest.mark.parametrize("bad", [{"episode": 1}, {"seed": "0", "episode": 1}, {"seed": 0, "episode": -1}])
def test_damaged_metrics_are_a_users_error(tmp_path, bad):
    run = make_run(tmp_path / "run", [line(0, 0), line(0, 1)], {})
    with pytest.raises(UserError, match="line 3"):
        run.append(bad)
        write_report([run.path])
    with pytest.raises(UserError, match="though the run has finished"):
        build_page([make_run(tmp_path / "bare", [], {})])
