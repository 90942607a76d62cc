import matplotlib.pyplot as plt
import pytest

from cdpo.errors import UserError
from cdpo.report import build_page, save_figure, style, write_figures
from cdpo.runs import RunFolder


@pytest.fixture
def folder(tmp_path):
    run = RunFolder.create(
        tmp_path / "made",
        {"kind": "reproduction", "figure": "chain", "scale": "smoke", "command": "cdpo reproduce <x>"},
    )
    paths = []
    for name, count in (("returns", 2), ("calibration", 61)):
        with style.house():
            figure, axes = plt.subplots()
            axes.set_title(f"seen in {name}")
        paths += save_figure(figure, run.figures / name, [{"agent": "<b>", "of_seeds": i / 7} for i in range(count)])
        plt.close(figure)
    for wall in (12.0, 130.0):
        run.append({"wall_s": wall})
    run.write_summary({"results": [], "figures": [path.name for path in paths]})
    return run


def test_a_reproduction_is_shown_with_its_figures_in_their_order_and_its_short_tables(folder):
    page = build_page([folder])
    assert page.index("seen in returns") < page.index("seen in calibration")
    assert page.count("<svg") == 2 and 'aria-label="calibration"' in page
    assert '<th scope="col">of seeds</th>' in page and "<td>0.143</td>" in page
    assert "calibration: 61 rows in figures/calibration.csv" in page
    assert "2.2 min" in page and "cdpo reproduce &lt;x&gt;" in page and "<b>" not in page


def test_its_figures_are_those_that_were_drawn(folder):
    drawn = {f"{name}.{kind}" for name in ("returns", "calibration") for kind in ("png", "svg", "csv")}
    assert {path.name for path in write_figures(folder)} == drawn
    assert all(path.exists() for path in write_figures(folder))


@pytest.mark.parametrize(
    "damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b"\xff\xfe"), lambda path: path.write_text("")]
)
def test_a_file_that_is_gone_or_damaged_is_told_in_one_line(folder, damage):
    damage(folder.figures / "returns.svg")
    with pytest.raises(UserError, match=r"cannot read .*returns\.svg.*draw it again with cdpo reproduce"):
        build_page([folder])


def test_one_that_was_drawn_before_figures_were_listed_is_to_be_drawn_again(folder):
    folder.write_summary({"results": []})
    with pytest.raises(UserError, match="has no figures yet; go on with: cdpo reproduce <x>"):
        build_page([folder])
