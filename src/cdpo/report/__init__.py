"""Shows what came out of runs: figures, and one page that holds everything and opens offline."""

from cdpo.report.figures import normalised_by_size, regret_curves, save_figure
from cdpo.report.page import build_page, write_figures, write_report

__all__ = ["build_page", "normalised_by_size", "regret_curves", "save_figure", "write_figures", "write_report"]
