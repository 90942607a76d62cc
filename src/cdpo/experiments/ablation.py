"""Figure 5 of the paper: what the parts of CDPO are good for, one taken away or changed at a time."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cdpo.experiments.comparison import (
    draw_returns,
    evaluation_rows,
    improvement_rows,
    ledger_rows,
    seed_rows,
    step_rows,
)
from cdpo.experiments.exploration import Budget, at_scale, on_equal_terms
from cdpo.experiments.figure import Records, Scale
from cdpo.experiments.training import TrainingCell
from cdpo.report.figures import save_tables
from cdpo.report.style import Look, looks
from cdpo.tasks import find_task
from cdpo.training.presets import preset

WHOLE = "CDPO"
_BOUNDS = (0.01, 0.03, 0.1, 0.3)
_STEPS = (5, 20, 80)
_NONE = {"rule": {"schedule": "none"}}

# Changes to the default preset of a task. What each is compared with is in the same figure.
VARIANTS: dict[str, dict[str, Any]] = {
    WHOLE: {},
    "referential only": {"rule": {"update": "referential"}},
    "conservative only": {"rule": {"update": "conservative"}},
    **{f"bound {bound:g}": {"rule": {"kl": bound}} for bound in _BOUNDS},
    **{f"bound {bound:g}, decayed": {"rule": {"kl": bound, "schedule": "sqrt"}} for bound in _BOUNDS},
    "no bound": _NONE,
    **{f"{steps} steps": {"dyna": {"updates": steps}} for steps in _STEPS},
    **{f"{steps} steps, no bound": {"dyna": {"updates": steps}, **_NONE} for steps in _STEPS},
    **{f"{heads} heads": {"ensemble": {"heads": heads}, "rule": {"models": heads}} for heads in (3, 4)},
    "POPLIN-P": {"solver": "mpc"},
    "BPTT": {"solver": "bptt"},
}
FIGURES: dict[str, tuple[str, ...]] = {
    "updates": (WHOLE, "referential only", "conservative only"),
    "bound": (WHOLE, *(f"bound {bound:g}" for bound in _BOUNDS), "no bound"),
    "bound-decayed": (WHOLE, *(f"bound {bound:g}, decayed" for bound in _BOUNDS), "no bound"),
    "steps": tuple(f"{steps} steps{bound}" for bound in ("", ", no bound") for steps in _STEPS),
    "heads": (WHOLE, "4 heads", "3 heads"),
    "solver": (WHOLE, "POPLIN-P", "BPTT"),
}
_FEW: dict[Scale, tuple[str, ...]] = {
    "smoke": (WHOLE, "referential only", "no bound", "POPLIN-P", "BPTT"),
    "quick": (WHOLE, "referential only", "bound 0.3", "no bound", "3 heads"),
    "paper": tuple(VARIANTS),
}

BUDGETS: dict[Scale, dict[str, Budget]] = {
    "smoke": {"inverted-pendulum": Budget(2, 2)},
    "quick": {"inverted-pendulum": Budget(8, 2)},
    "paper": {"inverted-pendulum": Budget(15, 6), "pendulum-swingup": Budget(25, 6), "half-cheetah": Budget(50, 6)},
}


def cells(scale: Scale) -> list[TrainingCell]:
    """CDPO and its variants on every task; one that is the task's default is left out there."""
    found = []
    for task, budget in BUDGETS[scale].items():
        start = at_scale(preset("default", find_task(task)), scale)
        for label, changes in VARIANTS.items():
            settings = on_equal_terms(start.changed(**changes))
            if (label == WHOLE or settings != start) and label in _FEW[scale]:
                found.append(TrainingCell(task, settings, budget.episodes, budget.seeds, label=label))
    return found


def draw(records: Records, folder: Path) -> list[Path]:
    """Returns over environment steps, a figure for each part; and tables of everything."""
    paths = []
    for name, labels in FIGURES.items():
        shown = [record for label in labels for record in records if record["label"] == label]
        look = {label: style for label, style in _looks(labels).items() if any(r["label"] == label for r in shown)}
        paths += draw_returns(shown, folder / name, look)
    tables = {
        "returns-by-seed": seed_rows(records),
        "evaluations": evaluation_rows(records),
        "returns-at-steps": step_rows(records),
        "improvement": [row for row in improvement_rows(records) if row["agent"] == WHOLE],
        "ledger": ledger_rows(records),
    }
    return paths + save_tables(tables, folder)


def _looks(labels: Sequence[str]) -> dict[str, Look]:
    """The whole as everywhere; what has no bound in the colour of what it would be with one, dashed."""
    found = looks({label: "cdpo" if label == WHOLE else label for label in labels})
    for label in labels:
        with_bound = label.removesuffix(", no bound")
        if with_bound != label and with_bound in found:
            found[with_bound] = replace(found[with_bound], dashes=())
            found[label] = replace(found[label], colour=found[with_bound].colour)
    return found
