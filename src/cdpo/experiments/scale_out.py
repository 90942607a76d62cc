"""Cells on a Ray cluster, with the extra `scale-out`.

Cells that share a program are one task. What a task has done is in the reproduction's folder, which every node must
see, and nothing in the cluster: a task whose node is lost is given to another, and goes on from the last checkpoint.
"""

import importlib
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cdpo.cells import Cell, Progress, Runner, run_here
from cdpo.errors import UserError
from cdpo.experiments.training import TrainingCell
from cdpo.runs import RunFolder, keep_programs
from cdpo.training.loop import Record

_ANSWERS = 10.0  # seconds in which a cluster does
_RETRIES = 5  # of a task whose node was lost


@contextmanager
def cluster(address: str) -> Iterator[Runner]:
    """Runs cells on the nodes of a cluster, by its `address`; "auto" for the one that this machine belongs to."""
    try:
        ray: Any = importlib.import_module("ray")
    except ModuleNotFoundError as error:
        raise UserError("--ray needs the extra scale-out; install it with: pip install -e '.[scale-out]'") from error
    try:
        if "://" in address:
            raise UserError(f"--ray takes HEAD:PORT, as ray start --head tells it, or auto, and no {address!r}")
        if address != "auto":  # Ray itself would wait for minutes
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=_ANSWERS).close()
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(f"no Ray cluster answers at {address!r}; begin one with: ray start --head") from error
    gpus = 1 if ray.cluster_resources().get("GPU", 0) else 0
    task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=_RETRIES)(_train)

    def run(cells: Sequence[Cell], folder: RunFolder, progress: Progress) -> None:
        training = [cell for cell in cells if isinstance(cell, TrainingCell)]
        if not training:  # others take seconds
            return run_here(cells, folder, progress)
        path = folder.path.resolve()
        waiting = {task.remote(group, path): group for group in TrainingCell.groups(training)}
        bar = progress(f"{len(waiting)} tasks at {address}", len(waiting))
        try:
            while waiting:
                (done, *_), _ = ray.wait(list(waiting))
                group = waiting.pop(done)
                try:
                    records = ray.get(done)
                except ray.exceptions.RayTaskError as error:
                    if isinstance(error.cause, UserError):  # as it would be told here, and not where on the node
                        raise error.cause from None
                    raise
                except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError) as error:
                    names = ", ".join(cell.name for cell in group)
                    raise UserError(f"{names}: lost {1 + _RETRIES} times with its node; see to the cluster") from error
                for record in records:
                    folder.append(record)
                bar.advance(note=", ".join(cell.name for cell in group))
            bar.done()
        finally:
            for each in waiting:  # interrupted: they keep what they have done
                ray.cancel(each)
        return None

    try:
        yield run
    finally:
        ray.shutdown()


def _train(cells: Sequence[TrainingCell], path: Path) -> list[Record]:
    """On a node: the records of cells that share a program."""
    keep_programs()
    # A node that was lost may only have been out of sight: what it still does must not be written beside this.
    return TrainingCell.train(cells, RunFolder.open(path), lambda label, total: _Quiet(), taking_over=True)


class _Quiet:
    """Progress that nobody sees."""

    def advance(self, steps: int = 1, *, note: str | None = None) -> None:
        """Nothing to show."""

    def done(self) -> None:
        """Nothing to show."""
