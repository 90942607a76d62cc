"""Cells on a Ray cluster: the same numbers as here, also when a node is lost."""

import dataclasses
import importlib.util
import shutil
from threading import Event

import pytest

from cdpo.errors import UserError
from cdpo.experiments import FIGURES, reproduce
from cdpo.experiments.exploration import rule_settings
from cdpo.experiments.scale_out import cluster
from cdpo.experiments.training import TrainingCell
from cdpo.progress import Progress
from cdpo.runs import RunFolder

HAVE_RAY = importlib.util.find_spec("ray") is not None
LONG = 60  # episodes: not over when a node is lost
CELLS = [
    TrainingCell("inverted-pendulum", rule_settings("inverted-pendulum", rule, "smoke"), episodes, 1)
    for rule, episodes in (("cdpo", 1), ("greedy", LONG), ("psrl", LONG))
]


@pytest.mark.skipif(HAVE_RAY, reason="ray is installed")
def test_without_the_extra_one_line_says_so():
    with pytest.raises(UserError, match=r"\.\[scale-out\]"), cluster("auto"):
        pass


def test_groups_share_a_program_and_tasks_follow_each_other():
    _, greedy, psrl = CELLS
    swing = dataclasses.replace(greedy, task="pendulum-swingup")
    noisier = dataclasses.replace(greedy, settings=greedy.settings.changed(sac={"deviation": 0.3}))
    assert TrainingCell.groups([greedy, swing, psrl, noisier]) == [[greedy, noisier], [psrl], [swing]]


@pytest.fixture
def two_nodes():
    """A cluster of a head without work, and two nodes with room for one task each."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    workers = [nodes.add_node(num_cpus=1) for _ in range(2)]
    nodes.wait_for_nodes()
    yield nodes, workers
    nodes.shutdown()


def results(path):
    """Less what tells where and how fast a cell was run."""
    told = RunFolder.open(path).summary["results"]
    return [{key: value for key, value in record.items() if key not in ("wall_s", "hardware")} for record in told]


@pytest.mark.extra
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what a cluster warns of is not ours to mend
def test_a_task_whose_node_is_lost_goes_on_at_another(two_nodes, tmp_path, monkeypatch):
    nodes, workers = two_nodes
    monkeypatch.setitem(FIGURES, "exploration", dataclasses.replace(FIGURES["exploration"], cells=lambda scale: CELLS))
    spread, pause = tmp_path / "spread", Event()

    def make(path, progress, **how):
        reproduce("exploration", "smoke", path, "cdpo reproduce exploration", progress, **how)
        return results(path)

    def episodes():
        """That each long cell has lived through."""
        found = [list(spread.glob(f"cells/*-{rule}-*/metrics.jsonl")) for rule in ("greedy", "psrl")]
        return [path[0].read_text().count("\n") if path else 0 for path in found]

    class Losing:
        """When the short cell has ended and each node is at work on a long one, one of them is lost."""

        def __init__(self, label, total):
            self.left = list(workers)

        def advance(self, steps=1, *, note=None):
            if len(self.left) == 2:
                while min(episodes()) < 1:
                    pause.wait(0.1)
                nodes.remove_node(self.left.pop(), allow_graceful=False)
                assert max(episodes()) < LONG

        def done(self):
            assert len(self.left) == 1

    with cluster(nodes.address) as run:
        lost = make(spread, Losing, run=run)
    assert lost == make(tmp_path / "here", Progress().task)


@pytest.mark.extra
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_mistake_on_a_node_is_told_as_here(two_nodes, tmp_path):
    nodes, _ = two_nodes
    unseen = RunFolder.create(tmp_path / "unseen", {"kind": "reproduce"})
    shutil.rmtree(unseen.path)  # as where nodes do not see the folder
    with cluster(nodes.address) as run, pytest.raises(UserError) as told:
        run(CELLS[:1], unseen, Progress().task)
    assert "unseen" in str(told.value) and "\n" not in str(told.value)


@pytest.mark.extra
def test_an_address_of_rays_client_is_refused():
    pytest.importorskip("ray")
    with pytest.raises(UserError, match="takes HEAD:PORT"), cluster("ray://127.0.0.1:10001"):
        pass


@pytest.mark.extra
@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere", "127.0.0.1:port"])
def test_an_address_where_no_cluster_is_gets_one_line(address):
    pytest.importorskip("ray")
    with pytest.raises(UserError, match=f"no Ray cluster answers at '{address}'"), cluster(address):
        pass
