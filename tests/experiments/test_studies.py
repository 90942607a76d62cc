"""Charts of variants: every dot beside its own name."""

from cdpo.experiments import studies


def record(env, label, regret):
    return {
        "env": env,
        "size": 3,
        "agent": "cdpo",
        "label": label,
        "steps": 10,
        "expected_regret": [regret, regret],
        "stuck_fraction": 0.0,
    }


def test_a_variant_that_a_panel_lacks_leaves_its_line_empty(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(studies, "save_figure", lambda figure, path, rows: drawn.append(figure) or [])
    records = [record("bandit", label, place) for place, label in enumerate(("first", "second", "third"))]
    studies.draw_expected([*records, record("deep-sea", "third", 7.0)], tmp_path)
    first, lacking = drawn[0].axes
    assert [tick.get_text() for tick in first.get_yticklabels()] == ["first", "second", "third"]
    heights = {float(y) for line in lacking.lines for x, y in zip(*line.get_data(), strict=True) if x == 7.0}
    assert heights == {2.0}
