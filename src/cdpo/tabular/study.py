"""A study: environments x sizes x agents, each cell a simulation that ends as one record."""

import dataclasses
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, Self

import gymnasium
import jax
import numpy as np

from cdpo.cells import Progress
from cdpo.errors import UserError, unknown
from cdpo.runs import RunFolder
from cdpo.statistics import mean_band
from cdpo.tabular.agents import AGENTS, CDPO, Agent, Oracle
from cdpo.tabular.environments import ENVIRONMENTS, Environment, Fixed, Sized, from_gymnasium
from cdpo.tabular.ledger import Entry
from cdpo.tabular.mdp import load_mdp
from cdpo.tabular.posterior import Prior
from cdpo.tabular.regret import regret
from cdpo.tabular.simulation import Run, simulate
from cdpo.terminal import printable

_CURVE_POINTS = 200
_BATCH = 16  # cells between which compiled programs, about 40 MB each, are let go


@dataclasses.dataclass(frozen=True)
class Cell:
    """One agent in one environment."""

    env: str
    size: int | None
    environment: Environment
    agent: Agent
    steps: int
    seeds: int = 10
    seed: int = 0
    period: int | None = None
    prior: Prior = Prior()
    ledger: bool = False
    variant: str = ""
    """Names this agent where several of one kind are compared."""

    @property
    def label(self) -> str:
        """The cell in a few words, for progress."""
        return f"{self.env}{'' if self.size is None else f' {self.size}'}, {self.variant or self.agent.name}"

    @property
    def identity(self) -> dict[str, Any]:
        """What makes two cells the same: a finished cell need not be run again."""
        agent = dataclasses.asdict(self.agent)
        world = (
            dataclasses.asdict(self.environment)
            if isinstance(self.environment, Sized)
            else {"period": self.environment.period}
        )
        world.pop("size", None)
        settings = {
            **agent,
            "prior": dataclasses.asdict(self.prior),
            "environment": world,
            "period": self.environment.period if self.period is None else self.period,
            "seeds": self.seeds,
            "seed": self.seed,
            "ledger": self.ledger,
        }
        return {
            "env": self.env,
            "size": self.size,
            "agent": self.agent.name,
            "label": self.variant,
            "settings": settings,
            "steps": self.steps,
        }

    @property
    def later(self) -> dict[str, Any]:
        """CDPO has had judges since 0.2.0."""
        return {"judges": 0} if isinstance(self.agent, CDPO) else {}

    @classmethod
    def run_all(cls, cells: Sequence[Self], folder: RunFolder, progress: Progress) -> None:
        """Run several, two at a time."""
        run_cells(cells, finished=folder.append, progress=progress)

    def measure(self, oracles: "Oracles", progress: Callable[[int], None] | None) -> dict[str, Any]:
        """Run the cell and sum it up."""
        oracle = oracles.of(self)
        return record(self, self.simulate(ledger=self.ledger, progress=progress), oracle)

    def simulate(self, agent: Agent | None = None, **options: Any) -> Run:
        """Run the cell's agent, or another one in its place."""
        return simulate(
            self.environment,
            self.agent if agent is None else agent,
            seeds=self.seeds,
            seed=self.seed,
            steps=self.steps,
            period=self.period,
            prior=self.prior,
            **options,
        )


def find_environment(name: str, size: int | None, families: Iterable[Sized] = ()) -> tuple[Environment, int | None]:
    """An environment by its name and size, by a Gymnasium id, or from an .npz file of arrays.

    `families` carry the settings of named environments; the size is put into them.
    """
    if name in ENVIRONMENTS:
        configured = {family.name: family for family in families}
        family = configured.get(name) or ENVIRONMENTS[name]()
        made = family if size is None else dataclasses.replace(family, size=size)
        return made, made.size
    if name.endswith(".npz") or os.path.isfile(name):
        mdp = load_mdp(name)
    elif name in gymnasium.registry:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Gymnasium warns in colours, whatever the terminal
                mdp = from_gymnasium(name)
        except (gymnasium.error.Error, ImportError) as error:
            raise UserError(f"Gymnasium cannot make {name}: {error}") from error
    else:
        raise unknown("environment", name, [*ENVIRONMENTS, "a file.npz", "a Gymnasium id with a transition table"])
    if size is not None:
        raise UserError(f"{printable(name)} has no sizes to choose from; leave the size out")
    return Fixed(mdp, mdp.states + 1), None


def find_agents(names: Iterable[str], configured: Iterable[Agent] = ()) -> list[Agent]:
    """Agents by their names, with the settings of `configured` where given."""
    given = {agent.name: agent for agent in configured}
    found = []
    for name in names:
        if name not in AGENTS:
            raise unknown("agent", name, AGENTS)
        found.append(given.get(name) or AGENTS[name]())
    if not found:
        raise UserError(f"no agents are named; choose some of {', '.join(AGENTS)}")
    if len({agent.name for agent in found}) < len(found):
        raise UserError("an agent is named twice")
    return found


def default_steps(environment: Environment) -> int:
    """1250 for each state, as in the original study of the chain."""
    return 1250 * shape_of(environment)[0]


def shape_of(environment: Environment) -> tuple[int, int]:
    """Number of states and of actions; without making any tables, where the environment knows."""
    if isinstance(environment, Sized):
        return environment.shape
    made = jax.eval_shape(environment.make, jax.random.key(0))
    return made.states, made.actions


def run_cells(
    cells: Sequence[Cell],
    *,
    finished: Callable[[dict[str, Any]], None],
    progress: Progress | None = None,
) -> None:
    """Run cells, two at a time so that one compiles while another computes; `finished` gets each record.

    The oracle of each environment is run once for all agents.
    """
    oracles = Oracles()
    lock = threading.Lock()
    stop = threading.Event()

    def run(cell: Cell) -> None:
        task = progress(cell.label, cell.steps * cell.seeds) if progress else None

        def advance(steps: int) -> None:
            if stop.is_set():
                raise InterruptedError
            if task:
                task.advance(steps)

        made = cell.measure(oracles, advance)
        if task:
            task.done()
        with lock:
            finished(made)

    for first in range(0, len(cells), _BATCH):
        with ThreadPoolExecutor(max_workers=2) as pool:
            waiting = [pool.submit(run, cell) for cell in cells[first : first + _BATCH]]
            try:
                for future in as_completed(waiting):
                    future.result()
            except BaseException:
                stop.set()  # cells under way end with their segment, so that Ctrl-C is answered soon
                for future in waiting:
                    future.cancel()
                raise
        if first + _BATCH < len(cells):
            jax.clear_caches()


class Oracles:
    """The oracle's run for each environment, shared by threads."""

    def __init__(self) -> None:
        """None has been run yet."""
        self._runs: dict[Any, Run] = {}
        self._locks: dict[Any, threading.Lock] = {}
        self._guard = threading.Lock()

    def of(self, cell: Cell) -> Run:
        """The oracle's run in the cell's environment."""
        key = (cell.environment, cell.steps, cell.seeds, cell.seed, cell.period)
        with self._guard:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            if key not in self._runs:
                self._runs[key] = cell.simulate(Oracle())
            return self._runs[key]


def record(cell: Cell, run: Run, oracle: Run) -> dict[str, Any]:
    """What a cell leaves behind, in plain types; a seed that bad numbers stopped, or its oracle, has none."""
    lost = regret(run, oracle)
    of_oracle = {seed: f"{why}, of the oracle" for seed, why in oracle.stopped.items()}
    stopped = {**of_oracle, **run.stopped}
    whole = np.array([seed not in stopped for seed in run.seeds])
    points = np.unique(np.linspace(0, len(lost.ends) - 1, min(_CURVE_POINTS, len(lost.ends))).round().astype(int))
    curve = lost.realised[whole][:, points] if whole.any() else np.full((1, len(points)), np.nan)
    middle, low, high = mean_band(curve)
    return {
        **cell.identity,
        "seeds": run.seeds.tolist(),
        "stopped": {str(seed): why for seed, why in sorted(stopped.items())},
        "regret": np.where(whole, lost.realised[:, -1], np.nan).tolist(),
        "expected_regret": np.where(whole, lost.expected[:, -1], np.nan).tolist(),
        "normalised_regret": np.where(whole, lost.normalised, np.nan).tolist(),
        "value_regret": np.where(whole, lost.value[:, -1], np.nan).tolist(),
        "stuck_fraction": float(lost.stuck[whole].mean()) if whole.any() else np.nan,
        "average_reward": run.average.tolist(),
        "curve": {
            "steps": lost.ends[points].tolist(),
            "mean": _short(middle),
            "low": _short(low),
            "high": _short(high),
        },
        "ledger": summarise_ledger(jax.tree.map(lambda x: x[whole], run.ledger), cell.agent)
        if run.ledger is not None and whole.any()
        else None,
    }


def summarise_ledger(entry: Entry, agent: Agent) -> dict[str, Any]:
    """The ledger of all seeds and updates in a few numbers."""
    gain = np.asarray(entry.improvement, np.float64)
    tolerance = 1e-5 * max(1.0, float(np.abs(gain).max()))
    lost = gain < -tolerance
    expected = np.asarray(entry.expected, np.float64)
    surely = 2 * np.asarray(entry.expected_error) + tolerance
    eta = _promised_distance(agent)
    return {
        "updates": gain.size,
        "lost_share": float(lost.mean()),
        "mean_loss": float(-gain[lost].mean()) if lost.any() else 0.0,
        "loss_per_update": float(-gain[lost].sum() / gain.size),
        "changed_share": float(np.mean(np.abs(expected) > tolerance)),
        "mean_expected": float(expected.mean()),
        "expected_above_q": float(np.mean(expected > surely)),
        "expected_below_q": float(np.mean(expected < -surely)),
        "mean_delta": float(np.mean(entry.delta)),
        "mean_delta_q": float(np.mean(entry.delta_q)),
        "mean_error_q": float(np.mean(entry.error_q)),
        "mean_error_pi": float(np.mean(entry.error_pi)),
        "mean_distance": float(np.mean(entry.distance)),
        "mean_trust": float(np.mean(entry.trust)),
        "mean_trust_eta": float(np.mean(eta * np.asarray(entry.slope))),
        "distance_within_eta": float(np.mean(entry.distance <= eta + 1e-5)),
        "bound_held": float(np.mean(gain >= entry.bound - 10 * tolerance)),
        "bound_positive": float(np.mean(np.asarray(entry.bound) > tolerance)),
        **_theorem(entry, eta, gain, tolerance),
    }


def _theorem(entry: Entry, eta: float, gain: np.ndarray, tolerance: float) -> dict[str, float | None]:
    """Where the theorem's right side is finite, held, and worth anything; an infinite kappa says nothing to hold."""
    finite = np.isfinite(entry.kappa)
    told: Any = jax.tree.map(lambda column: np.asarray(column, np.float64)[finite], entry)
    side = told.theorem(eta)
    shifted = np.asarray(entry.shift) > 1e-5
    return {
        "shifted_share": float(shifted.mean()),
        "kappa_finite": float(finite.mean()),
        "kappa_finite_shifted": float(finite[shifted].mean()) if shifted.any() else None,
        "theorem_positive": float(np.sum(side > tolerance) / finite.size),
        "median_kappa": float(np.median(told.kappa)) if finite.any() else None,
        # Of the finite ones; below a vacuous one not even the worst of all policies could have gone.
        "theorem_held": float(np.mean(gain[finite] >= side - 10 * tolerance)) if finite.any() else None,
        "theorem_vacuous": float(np.mean(side <= told.worst)) if finite.any() else None,
    }


def _promised_distance(agent: Agent) -> float:
    """The bound on the total variation from q_t to pi_t: zero for rules with one update, one where nothing binds."""
    if not isinstance(agent, CDPO):
        return 0.0
    return 1.0 if agent.constraint in ("none", "previous") else agent.eta


def _short(values: np.ndarray) -> list[float]:
    return [float(f"{x:.6g}") for x in values]
