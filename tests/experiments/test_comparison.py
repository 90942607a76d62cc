"""What figures and tables say of training runs, against records made by hand."""

import math

import numpy as np
import pytest
from scipy.stats import mannwhitneyu, trim_mean

from cdpo.agents import CDPO, DPI, HUCRL, MBPO, METRPO, PSRL, SLBO, Greedy
from cdpo.experiments import comparison
from cdpo.experiments.comparison import draw_comparison, episode_curve, improvement_rows, learning_curve, step_rows
from cdpo.experiments.training import COVERAGE, evaluations, held, ledger
from cdpo.report.training.run import Run
from cdpo.statistics import interquartile
from cdpo.training.settings import Settings


@pytest.fixture
def records(curve, record):
    """Two agents on two tasks; one seed of the second was stopped, and another before it was ever evaluated."""
    steps = [10, 20, 30, 40, 50]
    stopped = [curve(steps[:3], [5.0, 6.0]), curve(steps[:1], []), curve(steps, [0.0, 1.0, 2.0, 3.0])]
    return [
        record("cdpo", [curve(steps, [k, k + 2.0, k + 1.0, k + 4.0]) for k in range(5)]),
        record("psrl", stopped, stopped=(0, 1)),
        record("cdpo", [curve(steps, [1.0, 2.0, 3.0, 9.0])], task="inverted-pendulum"),
        record("psrl", [curve(steps, [1.0, 2.0, 3.0, 4.0])] * 2, task="inverted-pendulum"),
    ]


def entry(rule, returns, **columns):
    """The ledger of one seed, from what metrics.jsonl says of it."""
    lines = {(0, 0): {"episode": 0, "eval_return": None}}
    for place, value in enumerate(returns):
        more = {key: values[place] for key, values in columns.items()}
        lines[0, place + 1] = {"episode": place + 1, "eval_return": value, **more}
    config = {"agent": rule.name, "settings": Settings(rule).to_json()}
    (found,) = ledger(Run(None, config, {}, lines, {}))
    return found


def test_a_ledger_by_hand():
    found = entry(
        CDPO(),
        [0.0, 100.0, 99.5, 90.0, 95.0],  # half a per cent is no loss, 9.5 are
        kl_spent=[0.05, 0.1, 0.12, 0.0, 0.1],
        kl_bound=[0.1] * 5,
        unsettled_reference=[50.0, 1.0, 2.0, None, 3.0],
        coverage50_test=[None, 0.4, 0.6, 0.5, 0.5],
        improvement_pi=[10.0, -2.0, 0.0, None, 4.0],
    )
    assert found["lost_share"] == 0.25 and found["lost_return"] == 9.5
    assert found["unsettled"] == 2.5  # the middle of those known
    assert found["kl_of_bound"] == pytest.approx(0.74) and found["kl_overspent"] == 0.2
    assert found["coverage50_test"] == 0.5 and found["coverage90_new"] is None
    assert found["improvement_pi"] == 3.0


@pytest.mark.parametrize(
    ("rule", "key"),
    [
        (Greedy(), "reference"),
        (CDPO(), "reference"),
        (PSRL(), "sample"),
        (MBPO(), "sample"),
        (METRPO(), "sample"),
        (SLBO(), "reference"),
        (DPI(), "reference"),
        (HUCRL(), "optimistic"),
    ],
)
def test_a_rules_own_planning_model_is_the_one_that_counts(rule, key):
    moved = {"unsettled_reference": [9.0, 1.0], "unsettled_sample": [9.0, 2.0], "unsettled_optimistic": [9.0, 3.0]}
    assert entry(rule, [1.0, 2.0], **moved)["unsettled"] == np.median(moved[f"unsettled_{key}"])


def test_a_ledger_of_little_or_nothing():
    assert set(entry(PSRL(), []).values()) == {None}
    found = entry(PSRL(), [7.0])
    assert found["lost_share"] is None and found["lost_return"] is None
    unbound = entry(CDPO(schedule="none"), [1.0], kl_spent=[3.0], kl_bound=[0.1])
    assert unbound["kl_of_bound"] is None and unbound["kl_overspent"] is None  # nothing holds the bound
    config = {"agent": "psrl", "settings": Settings(PSRL()).to_json()}
    assert [set(each.values()) for each in ledger(Run(None, config, {}, {}, {3: "data"}))] == [{None}]


def test_an_evaluation_holds_until_the_next():
    steps, values = np.array([10.0, 20.0]), np.array([1.0, 2.0])
    np.testing.assert_array_equal(held(steps, values, np.array([9, 10, 19, 20, 99])), [math.nan, 1, 1, 2, 2])
    assert np.isnan(held(np.zeros(0), np.zeros(0), np.array([5.0]))).all()


def test_returns_at_quarters_by_hand(records):
    rows = step_rows(records)
    assert [row["env_steps"] for row in rows[:4]] == [12, 25, 38, 50]  # of five episodes of ten steps
    first, second, third, last = rows[:4]
    assert first["interquartile_mean"] is None and first["seeds"] == 0  # before the first evaluation
    for row, shift in ((second, 0.0), (third, 2.0), (last, 4.0)):
        expected = interquartile([k + shift for k in range(5)])
        assert (row["interquartile_mean"], row["low"], row["high"]) == (expected.mean, expected.low, expected.high)
        assert row["interquartile_mean"] == trim_mean([k + shift for k in range(5)], 0.25)
    # A seed that was stopped counts with what it had, one without any evaluation does not.
    last = rows[7]
    assert (last["agent"], last["interquartile_mean"], last["seeds"], last["reached"]) == ("psrl", 4.5, 2, 1)


def test_a_curve_begins_where_every_seed_has_an_evaluation(curve, record):
    uneven = record("cdpo", [curve([3, 8, 20], [1.0, 2.0]), curve([10, 15, 30], [5.0, 7.0])])
    found = learning_curve(uneven)
    assert found.x.tolist() == [15, 20, 30]
    assert found.mean.tolist() == [3.0, 3.5, 4.5]  # (1 + 5) / 2, (2 + 5) / 2, (2 + 7) / 2
    assert not learning_curve(record("cdpo", [curve([3], []), curve([], [])]))


def test_coverage_over_episodes(records):
    found = episode_curve(records[1], "coverage50_test")
    assert found.x.tolist() == [1, 2, 3, 4] and found.seeds.tolist() == [2, 2, 1, 1]
    np.testing.assert_allclose(found.mean, [0.1, 0.2, 0.3, 0.4])


def test_probabilities_of_improvement_are_those_of_final_evaluations(records):
    rows = {(row["task"], row["agent"], row["over"]): row for row in improvement_rows(records)}
    assert list(rows) == [
        (task, *pair)
        for task in ("pusher", "inverted-pendulum", "all tasks")
        for pair in (("cdpo", "psrl"), ("psrl", "cdpo"))
    ]
    x, y = ([value for value in each["final"] if value is not None] for each in records[:2])
    assert len(x) == 5 and y == [5.5, 2.0]
    share = mannwhitneyu(x, y).statistic / 10
    assert rows["pusher", "cdpo", "psrl"]["probability"] == pytest.approx(share)
    assert rows["inverted-pendulum", "cdpo", "psrl"]["probability"] == 1.0
    pooled = rows["all tasks", "cdpo", "psrl"]
    assert pooled["probability"] == pytest.approx((share + 1) / 2) and pooled["seeds"] == 7 + 3
    for (task, first, second), row in rows.items():
        other = rows[task, second, first]
        assert row["probability"] + other["probability"] == pytest.approx(1)
        if task == "inverted-pendulum":  # of one agent there is a single seed
            assert row["low"] is row["high"] is None
        else:
            assert row["low"] + other["high"] == pytest.approx(1)


def test_a_comparison_is_drawn_and_its_tables_are_the_records(tmp_path, records, rows):
    paths = draw_comparison(records, tmp_path)
    figures = {f"{stem}{end}" for stem in ("returns", "ledger", "calibration") for end in (".png", ".svg", ".csv")}
    tables = {"evaluations.csv", "returns-by-seed.csv", "returns-at-steps.csv", "improvement.csv"}
    assert {path.name for path in paths} == {path.name for path in tmp_path.iterdir()} == figures | tables
    found = rows(tmp_path / "returns-by-seed.csv")
    expected = [(record, seed) for record in records for seed in record["seeds"]]
    for row, (each, seed) in zip(found, expected, strict=True):
        values = evaluations(each)[seed][1]
        assert (row["task"], row["agent"], int(row["seed"])) == (each["task"], each["agent"], seed)
        assert row["final"] == ("" if len(values) == 0 else str(values[-3:].mean()))
        assert bool(row["stopped"]) == (str(seed) in each["stopped"])
    learned = [row for row in rows(tmp_path / "returns.csv") if (row["task"], row["agent"]) == ("pusher", "cdpo")]
    assert [float(row["interquartile_mean"]) for row in learned] == [2.0, 4.0, 3.0, 6.0]
    entries = [entry for record in records for entry in record["ledger"]]
    assert [float(row["unsettled"]) for row in rows(tmp_path / "ledger.csv")] == [e["unsettled"] for e in entries]
    assert {row["quantity"] for row in rows(tmp_path / "calibration.csv")} == set(COVERAGE)


def test_a_task_on_which_no_agent_has_a_model_takes_no_room_among_figures_of_models(tmp_path, records, rows):
    for each in records:
        if each["task"] == "pusher":
            each["curves"] = [each_curve | {key: [None] * 5 for key in COVERAGE} for each_curve in each["curves"]]
            each["ledger"] = [entry | {"unsettled": None} for entry in each["ledger"]]
    draw_comparison(records, tmp_path)
    assert {row["task"] for row in rows(tmp_path / "calibration.csv")} == {"inverted-pendulum"}
    assert "pusher" in (tmp_path / "returns.svg").read_text()
    assert "pusher" not in (tmp_path / "calibration.svg").read_text()
    assert (tmp_path / "ledger.svg").read_text().count("median movement") == 1


@pytest.mark.slow
def test_a_label_names_a_line(tmp_path, records, rows):
    labelled = [{**each, "label": f"{each['agent']}, mine"} for each in records]
    draw_comparison(labelled, tmp_path)
    assert {row["agent"] for row in rows(tmp_path / "improvement.csv")} == {"cdpo, mine", "psrl, mine"}
    assert rows(tmp_path / "returns.csv")[0]["label"] == "cdpo, mine"
    assert "cdpo, mine" in (tmp_path / "returns.svg").read_text()


def test_without_any_evaluation_what_is_known_is_still_told(tmp_path, curve, record):
    nothing = record("cdpo", [curve([5], []), curve([], [])], stopped=(0, 1))
    nothing["ledger"] = [dict.fromkeys(entry) for entry in nothing["ledger"]]
    names = {path.name for path in draw_comparison([nothing], tmp_path)}
    assert "returns-by-seed.csv" in names and "returns.png" not in names and "ledger.png" in names
    assert comparison.seed_rows([nothing])[0]["stopped"].startswith("the model in iteration 2")
