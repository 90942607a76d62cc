"""Studies: cells that run two at a time, and the names by which environments and agents are found."""

import dataclasses
import threading
from dataclasses import dataclass, field

import numpy as np
import pytest

from cdpo.cells import complete, record_of
from cdpo.errors import UserError
from cdpo.runs import RunFolder
from cdpo.tabular import CDPO, PSRL, Bandit, Chain, Greedy, Oracle, Random, study
from cdpo.tabular.agents import AGENTS
from cdpo.tabular.ledger import Entry
from cdpo.tabular.simulation import Run
from cdpo.tabular.study import Cell, default_steps, find_agents, find_environment, run_cells, summarise_ledger


@dataclass(frozen=True)
class Scripted(Cell):
    """A cell that does what it is told instead of a simulation."""

    script: object = field(default=None, compare=False)

    def measure(self, oracles, progress):
        return {**self.identity, "made": self.script(progress)}


def scripted(name, script):
    return Scripted("chain", 2, Chain(2), Random(), steps=10, seeds=2, variant=name, script=script)


def test_every_finished_cell_is_handed_over_once():
    cells = [scripted(str(k), lambda progress, k=k: k) for k in range(5)]
    made = []
    run_cells(cells, finished=made.append)
    assert sorted(record["made"] for record in made) == [0, 1, 2, 3, 4]


def test_a_failure_is_the_studys_and_stops_the_other_cells():
    under_way, stopped = threading.Event(), []

    def endless(progress):
        try:
            for _ in range(20_000_000):
                progress(1)
                under_way.set()
        except InterruptedError:
            stopped.append(True)
            raise

    def failing(progress):
        assert under_way.wait(60)
        raise ZeroDivisionError("first of all")

    made = []
    cells = [scripted("endless", endless), scripted("failing", failing)]
    cells += [scripted(f"never {k}", endless) for k in range(3)]
    with pytest.raises(ZeroDivisionError, match="first of all"):
        run_cells(cells, finished=made.append)
    assert stopped and made == []


def test_what_finished_before_a_failure_is_kept(tmp_path):
    finished = threading.Event()

    def good(progress):
        return 1

    def failing(progress):
        assert finished.wait(60)
        raise ZeroDivisionError

    folder = RunFolder.create(tmp_path / "run", {})

    @dataclass
    class Task:
        label: str

        def advance(self, steps):
            pass

        def done(self):
            pass

    cells = [scripted("failing", failing), scripted("good", good), scripted("after", lambda progress: finished.set())]
    with pytest.raises(ZeroDivisionError):
        complete(folder, cells, lambda label, total: Task(label))
    kept = {record["label"]: record["made"] for record in folder.records()}
    assert kept["good"] == 1 and "failing" not in kept
    # And is not run again.
    again = [scripted("failing", lambda progress: 2), scripted("good", None), scripted("after", lambda progress: None)]
    assert [r["made"] for r in complete(folder, again, lambda label, total: Task(label))] == [2, 1, None]


def test_progress_is_by_agent_steps():
    tasks = []

    class Task:
        def __init__(self, label, total):
            self.label, self.total, self.steps, self.closed = label, total, 0, False
            tasks.append(self)

        def advance(self, steps):
            self.steps += steps

        def done(self):
            self.closed = True

    run_cells([scripted("a", lambda progress: progress(20))], finished=lambda record: None, progress=Task)
    (task,) = tasks
    assert (task.label, task.total, task.steps, task.closed) == ("chain 2, a", 20, 20, True)


def test_the_oracle_runs_once_for_each_environment(monkeypatch):
    calls = []

    def simulate(environment, agent, *, seeds, seed, steps, period, **_):
        calls.append((environment, agent))
        return Run(
            agent, np.arange(seeds), steps, 1, *(np.ones((seeds, steps)) for _ in range(3)), np.ones(seeds), None
        )

    monkeypatch.setattr(study, "simulate", simulate)
    made = []
    worlds = (Chain(2), Chain(3), Bandit(2))
    agents = (PSRL(), Greedy(), CDPO(), Random())
    cells = [Cell(world.name, world.size, world, agent, steps=4, seeds=2) for world in worlds for agent in agents]
    run_cells(cells, finished=made.append)
    assert len(made) == len(cells)
    for world in worlds:
        assert calls.count((world, Oracle())) == 1
        for agent in agents:
            assert calls.count((world, agent)) == 1


def entry(seeds, blocks):
    """Each update of seed k is worth k + 1."""
    worth = np.broadcast_to(np.arange(1.0, seeds + 1)[:, None], (seeds, blocks))
    return Entry(**dict.fromkeys(Entry._fields, worth))


def short_run(stopped, *, agent=None, ledger=None):
    """Three seeds of four steps, which earn 1 a step in vain, until one is stopped."""
    reward = np.ones((3, 4))
    for seed in stopped:
        reward[seed, 2:] = np.nan
    return Run(agent, np.arange(3), 4, 1, reward, reward, reward, np.ones(3), ledger, stopped)


def test_a_seed_that_was_stopped_has_no_numbers_and_counts_in_none():
    cell = Cell("chain", 2, Chain(2), PSRL(), steps=4, seeds=3)
    oracle = dataclasses.replace(short_run({}), reward=np.array([[3.0], [5.0], [100.0]]) * np.ones((3, 4)))
    ledger = entry(3, 4)
    made = study.record(cell, short_run({2: "the reward in block 3"}, ledger=ledger), oracle)
    assert made["stopped"] == {"2": "the reward in block 3"}
    for name in ("regret", "expected_regret", "normalised_regret", "value_regret"):
        assert np.isfinite(made[name]).tolist() == [True, True, False], name
    assert made["regret"][:2] == [8.0, 16.0]
    assert made["curve"]["mean"] == [3.0, 6.0, 9.0, 12.0]
    assert (made["ledger"]["updates"], made["ledger"]["mean_distance"]) == (8, 1.5)
    assert 0 <= made["stuck_fraction"] <= 1


def test_a_seed_whose_oracle_was_stopped_has_no_numbers():
    cell = Cell("chain", 2, Chain(2), PSRL(), steps=4, seeds=3)
    made = study.record(cell, short_run({}), short_run({0: "the reward in block 3"}))
    assert made["stopped"] == {"0": "the reward in block 3, of the oracle"}
    for name in ("regret", "expected_regret", "normalised_regret", "value_regret"):
        assert np.isfinite(made[name]).tolist() == [False, True, True], name


def test_where_every_seed_was_stopped_nothing_is_summed_up():
    cell = Cell("chain", 2, Chain(2), PSRL(), steps=4, seeds=3)
    made = study.record(cell, short_run(dict.fromkeys(range(3), "bad"), ledger=entry(3, 4)), short_run({}))
    assert list(made["stopped"]) == ["0", "1", "2"]
    assert made["ledger"] is None and np.isnan(made["stuck_fraction"])
    assert made["curve"]["steps"] == [1, 2, 3, 4] and np.isnan(made["curve"]["mean"]).all()


def test_cells_that_differ_in_anything_are_not_the_same(tmp_path):
    base = {"env": "chain", "size": 2, "environment": Chain(2), "agent": CDPO(), "steps": 10}
    changes = [
        {},
        {"environment": Chain(2, pays="attempt")},
        {"agent": CDPO(eta=0.3)},
        {"agent": PSRL()},
        {"steps": 20},
        {"seeds": 2},
        {"seed": 1},
        {"period": 1},
        {"prior": study.Prior(mean=0.1)},
        {"ledger": True},
        {"variant": "mine"},
    ]
    folder = RunFolder.create(tmp_path / "run", {})
    cells = [Cell(**{**base, **change}) for change in changes]
    for cell in cells:
        folder.append({**cell.identity, "more": "of it"})
    records = folder.records()
    for place, cell in enumerate(cells):
        assert record_of(cell, records) is records[place]
        assert record_of(cell, records[:place] + records[place + 1 :]) is None


def test_an_environment_by_name_carries_its_settings():
    assert find_environment("chain", 3) == (Chain(3), 3)
    assert find_environment("chain", None) == (Chain(8), 8)
    assert find_environment("bandit", None) == (Bandit(4), 4)
    assert find_environment("chain", 3, [Chain(pays="attempt")]) == (Chain(3, pays="attempt"), 3)
    assert default_steps(Chain(3)) == 3750


def test_an_environment_of_gymnasium():
    environment, size = find_environment("FrozenLake-v1", None)
    mdp = environment.make(None)
    assert (size, mdp.states, mdp.actions) == (None, 16, 4)
    assert np.flatnonzero(mdp.terminal).tolist() == [5, 7, 11, 12, 15]
    assert float(mdp.transition[14, 1, 15]) == pytest.approx(1 / 3)
    assert float(mdp.reward_mean[14, 1, 15]) == 1
    with pytest.raises(UserError, match="no sizes to choose from"):
        find_environment("FrozenLake-v1", 4)


def test_an_environment_of_a_file(tmp_path, monkeypatch):
    transition = np.array([[[0.25, 0.75], [1, 0]], [[0, 1], [0.5, 0.5]]])
    np.savez(tmp_path / "mine.npz", transition=transition, reward_mean=[[0, 1], [2, 3]], discount=0.5)
    monkeypatch.chdir(tmp_path)
    environment, size = find_environment("mine.npz", None)
    mdp = environment.make(None)
    assert size is None and environment.period == 3
    np.testing.assert_array_equal(mdp.transition, transition)
    np.testing.assert_array_equal(mdp.reward, [[0, 1], [2, 3]])
    assert float(mdp.discount) == 0.5
    with pytest.raises(UserError, match="no sizes to choose from"):
        find_environment("mine.npz", 4)


def test_agents_by_name_carry_their_settings():
    assert find_agents(["psrl", "cdpo"]) == [PSRL(), CDPO()]
    assert find_agents(["cdpo", "random"], [CDPO(eta=0.4)]) == [CDPO(eta=0.4), Random()]
    assert [agent.name for agent in find_agents(AGENTS)] == list(AGENTS)


@pytest.mark.parametrize(
    ("agent", "eta", "within", "holds", "vacuous", "positive"),
    [
        (CDPO(eta=0.2), 0.2, 0.75, 2 / 3, 0.0, 0.0),
        (CDPO(eta=0.2, constraint="none"), 1.0, 1.0, 1.0, 2 / 3, 0.0),  # no total variation is above one
        (CDPO(eta=0.2, constraint="previous"), 1.0, 1.0, 1.0, 2 / 3, 0.0),  # eta is about another policy
        (PSRL(), 0.0, 0.25, 2 / 3, 0.0, 0.5),  # pi is q
    ],
)
def test_a_ledger_in_a_few_numbers_by_hand(agent, eta, within, holds, vacuous, positive):
    columns = {
        "improvement": [0.5, -0.2, 0.0, -0.4],
        "delta": [0.6, 0.1, 0.0, 0.3],
        "delta_q": [1.0, 2.0, 3.0, 4.0],
        "error_q": [0.1, 0.1, 0.1, 0.1],
        "error_pi": [0.1, 0.2, 0.1, 0.0],
        "kappa": [1.0, 2.0, np.inf, 3.0],
        "shift": [0.0, 0.5, 1.0, 0.2],
        "distance": [0.1, 0.3, 0.0, 0.2],
        "iota": [1.0, 1.0, 1.0, 1.0],
        "slope": [2.0, 1.0, 1.0, 2.0],
        "expected": [0.2, -0.1, 0.0, -0.3],
        "expected_error": [0.05, 0.1, 0.0, 0.1],
        "worst": [-1.55, -1.55, -1.55, -1.55],
    }
    found = summarise_ledger(Entry(*(np.array([columns[name]]) for name in Entry._fields)), agent)
    assert found == pytest.approx(
        {
            "updates": 4,
            "lost_share": 0.5,
            "mean_loss": 0.3,
            "loss_per_update": 0.15,
            "changed_share": 0.75,
            "mean_expected": -0.05,
            "expected_above_q": 0.25,
            "expected_below_q": 0.25,  # by more than two standard errors
            "mean_delta": 0.25,
            "mean_delta_q": 2.5,
            "mean_error_q": 0.1,
            "mean_error_pi": 0.1,
            "shifted_share": 0.75,
            "kappa_finite": 0.75,
            "kappa_finite_shifted": 2 / 3,
            "median_kappa": 2.0,
            "mean_distance": 0.15,
            "mean_trust": 0.225,
            "mean_trust_eta": 1.5 * eta,
            "distance_within_eta": within,
            "bound_held": 0.75,  # the bounds are 0.2, -0.5, -0.2 and -0.2
            "bound_positive": 0.25,
            "theorem_held": holds,  # of the three whose kappa is finite
            "theorem_vacuous": vacuous,
            "theorem_positive": positive,
        }
    )


def test_where_kappa_is_always_infinite_nothing_was_held():
    columns = {name: np.zeros((1, 3)) for name in Entry._fields} | {"kappa": np.full((1, 3), np.inf)}
    found = summarise_ledger(Entry(**columns), PSRL())
    assert found["kappa_finite"] == found["theorem_positive"] == 0.0
    assert found["theorem_held"] is None and found["theorem_vacuous"] is None
