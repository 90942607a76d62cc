"""How much of its training a half-cheetah spent on its back.

    cdpo train half-cheetah --seeds 1 --seed 1 --episodes 30 --dyna.updates 5 --out runs/slow
    python tools/upside_down.py runs/slow --label "5 steps" --into upside-down.csv

A line for each seed and episode of a run, from the transitions that it keeps: the return, and the share of steps in
which the torso is turned by more than a right angle. Lines of a label take the place of older ones.
"""

import argparse
import csv
from pathlib import Path
from typing import Any

import numpy as np

from cdpo.errors import UserError
from cdpo.files import write_atomic
from cdpo.report.figures import csv_bytes
from cdpo.runs import RunFolder
from cdpo.training.checkpoints import go_on
from cdpo.training.config import seeds_of, settings_of, task_of
from cdpo.training.loop import Trainer

TASK = "half-cheetah"
_PITCH = 2  # among its observations


def measure(run: Path, label: str) -> list[dict[str, Any]]:
    """A line for each seed and episode."""
    folder = RunFolder.open(run)
    task, seeds = task_of(folder), seeds_of(folder)
    if task.name != TASK:
        raise UserError(f"{str(run)!r} is of {task.name}; only a {TASK} has a back to lie on")
    trainer = Trainer(task, settings_of(folder), seeds)
    go_on(folder, trainer)
    lines = []
    for seed, rows in zip(seeds, trainer.rows(), strict=True):
        lived = rows.reshape(-1, task.horizon, rows.shape[-1])  # its episodes do not end before their time
        for episode, steps in enumerate(lived):
            turned = float(np.mean(np.cos(steps[:, _PITCH]) < 0))
            total = float(np.sum(steps[:, task.observations + task.actions], dtype=np.float64))
            lines.append(
                {"label": label, "seed": seed, "episode": episode, "return": round(total, 2), "upside_down": turned}
            )
    return lines


def main() -> None:
    """By the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a training run, or the folder of a reproduction's cell")
    parser.add_argument("--label", required=True, help="its name among the lines")
    parser.add_argument("--into", type=Path, required=True, help="a CSV file, made or added to")
    told = parser.parse_args()
    try:
        lines = measure(told.run, told.label)
    except UserError as error:
        parser.error(str(error))
    known = list(csv.DictReader(told.into.read_text().splitlines())) if told.into.exists() else []
    write_atomic(told.into, csv_bytes([line for line in known if line["label"] != told.label] + lines))


if __name__ == "__main__":
    main()
