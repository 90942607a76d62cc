"""What a page shows of training runs: a section for each run, and a comparison of those that share a task."""

from cdpo.report.training.pictures import write_figures
from cdpo.report.training.sections import NOTES, comparison, section

__all__ = ["NOTES", "comparison", "section", "write_figures"]
