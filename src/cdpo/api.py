"""Agents as objects: `cdpo.CDPO(task).learn(episodes=20)`."""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cdpo.agents import ModelBased, ModelMind, Planner
from cdpo.dynamics.models import Belief, sampled_models
from cdpo.errors import UserError
from cdpo.files import quoted
from cdpo.progress import Progress
from cdpo.runs import RunFolder, check_free
from cdpo.solvers.policy import HostPolicy
from cdpo.tasks import Task, find_task
from cdpo.tasks.asking import BrokenEnvironment
from cdpo.training.checkpoints import FOLDER, POLICY, go_on, has_state, policies
from cdpo.training.collect import evaluation
from cdpo.training.config import records_of, run_config, seed_numbers, seeds_of, settings_of, task_of
from cdpo.training.loop import Lived, Record, Trainer
from cdpo.training.presets import build_settings, preset
from cdpo.training.run import Journal, returns_note, summarise
from cdpo.training.schema import names
from cdpo.training.settings import Settings
from cdpo.training.store import flatten, restore, save_arrays

# At decision time a plan is made for one state and not for many: it can be searched for more thoroughly.
_DECIDING = {"candidates": 64, "elites": 8, "iterations": 3}


class DeepAgent:
    """One agent, or several that differ in their seeds only and are trained side by side."""

    rule: ClassVar[str]

    def __init__(
        self,
        task: Any,
        *,
        seeds: int = 1,
        seed: int = 0,
        preset: str = "default",
        reward: Callable[..., Any] | None = None,
        terminates: Callable[..., Any] | None = None,
        horizon: int | None = None,
        env_timeout: float | None = None,
        **changes: Any,
    ) -> None:
        """An agent that has learned nothing yet.

        `task` is a task's name, a Gymnasium id, an environment, a function that returns one, or a Task. On an
        environment that is not ours, reward and termination are learned unless functions of (s, a, s') are given.

        With `env_timeout`, an environment that takes longer than so many seconds for a step or a reset ends its seed.

        The preset's settings can be changed by part, `dyna={"horizon": 20}`, and those of the rule itself by name,
        `kl=0.05`.
        """
        found = find_task(task, reward=reward, terminates=terminates, horizon=horizon, env_timeout=env_timeout)
        word = task if isinstance(task, str) and reward is None and terminates is None else None
        self._begin(found, word, build_settings(found, self.rule, preset, changes), preset, seeds, seed, env_timeout)

    def _begin(
        self,
        task: Task,
        word: str | None,
        settings: Settings,
        preset: str,
        seeds: int,
        seed: int,
        env_timeout: float | None = None,
    ) -> Self:
        """Before any episode; `word` is what the task can be found by again."""
        self.task, self.settings, self.preset = task, settings, preset
        self._word, self._env_timeout = word, env_timeout
        self._trainer = Trainer(task, settings, seed_numbers(seeds, seed))
        self._seeds = [Seed(self, index) for index in range(seeds)]
        self._policy_only = False
        self._wall = 0.0
        self.records: list[Record] = []
        return self

    @property
    def seeds(self) -> list[int]:
        """The seeds, in the order of `agent[k]`."""
        return [pupil.seed for pupil in self._trainer.pupils]

    @property
    def episodes(self) -> int:
        """How many episodes each seed has lived through, random ones among them."""
        return self._trainer.episode

    @property
    def stopped(self) -> dict[int, str]:
        """Seeds that were stopped because a number was not finite or their environment failed, and where that was."""
        return {pupil.seed: pupil.stopped for pupil in self._trainer.pupils if pupil.stopped is not None}

    def learn(self, episodes: int, *, progress: bool = False) -> Self:
        """`episodes` more of each seed; the very first call makes one before them, as the first is random."""
        if self._policy_only:
            raise UserError("only the policy was loaded, which cannot learn; load the run without policy_only")
        if episodes < 1:
            raise UserError(f"episodes must be at least 1, not {episodes}")
        last = max(self._trainer.episode - 1, 0) + episodes
        self.settings.loop.check_learns(last)
        self._since = time.monotonic()
        with Progress() as display:
            task = display.task(f"{self.task.name}, {self.rule}", last + 1) if progress else None
            while self._trainer.episode <= last and self._trainer.going:
                lived = self._trainer.advance(last=self._trainer.episode == last, keep=self._keep)
                if task is not None:
                    task.advance(note=returns_note(lived.records))
            if task is not None:
                task.done()
        return self

    def _keep(self, lived: Lived) -> None:
        """The records of an episode; its time is that since the one before, or since `learn` began."""
        now = time.monotonic()
        self._wall += now - self._since
        self._since = now
        self.records += [{**record, "wall_s": round(self._wall, 3)} for record in lived.records]

    def __len__(self) -> int:
        """The number of seeds."""
        return len(self._trainer.pupils)

    def __getitem__(self, index: int) -> "Seed":
        """One seed."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"there are {len(self)} seeds, and none at {index}")
        return self._seeds[index]

    @property
    def best(self) -> "Seed":
        """The seed with the best last evaluation, a stopped one only if none goes on; the first, before any."""

        def merit(index: int) -> tuple[bool, float]:
            pupil = self._trainer.pupils[index]
            score = -np.inf if pupil.evaluated is None else pupil.evaluated
            return pupil.stopped is None, score if np.isfinite(score) else -np.inf

        return self[max(range(len(self)), key=merit)]

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
    ) -> tuple[np.ndarray, Any]:
        """The best seed's action at an observation [d] or a batch of them [n, d]; `state` is handed back.

        The arguments and results are those of Stable-Baselines3.
        """
        return self.best.predict(observation, state, episode_start, deterministic)

    def planner(self, **changes: Any) -> Planner:
        """That acts by planning with the best seed's models; `changes` are to the settings of mpc."""
        return self.best.planner(**changes)

    def evaluate(self, episodes: int = 10) -> np.ndarray:
        """Returns of new episodes by the mode of each seed's policy, [seeds, episodes].

        NaN where anything was no finite number, and in the row of a seed that cannot be evaluated, of which a warning
        tells. If none can, it is an error.
        """
        found: list[np.ndarray | None] = []
        failed: list[str] = []
        for each in self._seeds:
            try:
                found.append(each.evaluate(episodes))
            except UserError as error:
                if len(failed) == len(self) - 1:
                    raise
                found.append(None)
                failed.append(f"seed {each.seed}: {error}")
        for line in failed:
            warnings.warn(line, RuntimeWarning, stacklevel=2)
        return np.array([np.full(episodes, np.nan) if each is None else each for each in found])

    @property
    def model(self) -> "Model":
        """The best seed's model."""
        return self.best.model

    def save(self, path: str | Path, *, policy_only: bool = False) -> Path:
        """Into a new folder: everything, replay included, or what is needed to act."""
        if policy_only or self._policy_only:
            return self._save_policies(path, slice(None))
        folder = self._new_folder(path, self.seeds)
        with folder.writing():
            kept = Journal(folder, self._trainer)
            try:
                kept.adopt(self.records)
            finally:
                kept.close()
            folder.write_summary(summarise(folder, self._trainer, self._wall))
        return folder.path

    def _save_policies(self, path: str | Path, which: slice) -> Path:
        """Those of some seeds, with nothing else."""
        folder = self._new_folder(path, self.seeds[which])
        policy = jax.tree.map(lambda leaf: leaf[which], self._trainer.minds().policy)
        told = {name: [getattr(p, name) for p in self._trainer.pupils[which]] for name in ("evaluated", "stopped")}
        with folder.writing():
            save_arrays(folder.folder(FOLDER) / POLICY, flatten(policy, names), told)
        return folder.path

    def _new_folder(self, path: str | Path, seeds: Sequence[int]) -> RunFolder:
        check_free(path)
        episodes = max(self.episodes - 1, 0)
        told = self.task, self._word, self.settings, self.preset, seeds, episodes, self._env_timeout
        return RunFolder.create(path, run_config(*told))


class Seed:
    """One seed of an agent."""

    def __init__(self, agent: DeepAgent, index: int) -> None:
        """The seed at `index`."""
        self._agent = agent
        self._trainer = agent._trainer
        self._index = index
        self._noise = np.random.default_rng(self.seed)
        self._at: int | None = None

    @property
    def seed(self) -> int:
        """Its number."""
        return self._trainer.pupils[self._index].seed

    @property
    def _policy(self) -> HostPolicy:
        if self._at != self._trainer.episode:  # it has learned since
            self._host = self._trainer.policy(self._index)
            self._at = self._trainer.episode
        return self._host

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[np.ndarray, Any]:
        """See `DeepAgent.predict`."""
        task = self._trainer.task
        seen = np.asarray(observation, np.float32)
        if seen.ndim not in (1, 2) or seen.shape[-1] != task.observations:
            raise UserError(f"an observation of {task.name} has {task.observations} numbers, not shape {seen.shape}")
        shape = (*seen.shape[:-1], task.actions)
        noise = None if deterministic else self._noise.standard_normal(shape).astype(np.float32)
        return task.unscaled(self._policy(seen, noise)).astype(np.float32), state

    def evaluate(self, episodes: int = 10, *, planner: Planner | None = None) -> np.ndarray:
        """Returns of new episodes by the policy's mode, or by planning, [episodes]; NaN where one had bad numbers."""
        if episodes < 1:
            raise UserError(f"episodes must be at least 1, not {episodes}")
        environment = self._trainer.pupils[self._index].environment
        acting = self._policy if planner is None else planner
        # Episode numbers count up from zero in training: these are others.
        try:
            return np.array(evaluation(environment, self._trainer.task, acting, self.seed, 2**31, episodes))
        except BrokenEnvironment as broken:
            raise UserError(f"the environment failed: {broken}; mend it, cdpo check-env tries it") from broken

    def planner(self, **changes: Any) -> Planner:
        """That acts by planning on models drawn from what this seed believes, whichever solver it learned with.

        Plans have the settings of mpc with a more thorough search, and `changes` to them.
        """
        settings, mind = self._trainer.settings, self._mind
        agent = settings.agent(self._trainer.task)
        assert isinstance(agent, ModelBased)
        told = settings if "mpc" in settings.parts else preset("default", self._trainer.task, settings.rule.name)
        plans = told.changed(mpc={**_DECIDING, **changes}).mpc
        key = jax.random.fold_in(jax.random.key(1), self.seed)
        models = sampled_models(mind.belief, agent.rule.models, "subset", key)
        solver, state = agent.kit.solver, mind.solver_state
        return Planner(mind.policy, models, agent.kit.discount, plans, solver=solver, state=state, seed=self.seed)

    def save(self, path: str | Path) -> Path:
        """What is needed to act as this seed does, into a new folder that `cdpo.load` and `cdpo evaluate` take."""
        return self._agent._save_policies(path, slice(self._index, self._index + 1))

    @property
    def model(self) -> "Model":
        """What this seed believes of the world."""
        return Model(self._mind.belief)

    @property
    def _mind(self) -> ModelMind:
        if self._agent._policy_only:
            raise UserError("only policies were loaded, without a model; that takes the whole run, and no policy_only")
        mind = self._trainer.mind(self._index)
        if not isinstance(mind, ModelMind):
            raise UserError(f"{self._trainer.settings.rule.name} learns without a model")
        if not self._trainer.pupils[self._index].iterations:
            raise UserError("no model was fitted yet; train the agent first")
        return mind


class Model:
    """A learned model."""

    def __init__(self, belief: Belief) -> None:
        """Of one seed."""
        self._belief = belief

    def predict(self, observation: Any, action: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean and calibrated deviation of the next observation, [d] or [n, d]; actions in the task's units.

        The deviation is fitted at the level of 90%: within 1.64 of it lies the truth that often. As errors are no
        Gaussian variables, ask `interval` for other levels.
        """
        return self._ask(Belief.predict, observation, action)

    def interval(self, observation: Any, action: Any, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """The lower and upper ends, [d] or [n, d], between which each part of the next observation is to lie.

        `level` is how often, in (0, 1): calibrated at every level by rows that models were not fitted on.
        """
        if not 0 < level < 1:
            raise UserError(f"level must be above 0 and below 1, not {level}")
        return self._ask(partial(Belief.interval, level=level), observation, action)

    def _ask(
        self, question: Callable[..., tuple[Array, Array]], observation: Any, action: Any
    ) -> tuple[np.ndarray, np.ndarray]:
        """What the belief answers."""
        task = self._belief.task
        seen, done = np.asarray(observation, np.float32), np.asarray(action, np.float32)
        if seen.shape[-1:] != (task.observations,) or done.shape != (*seen.shape[:-1], task.actions):
            raise UserError(
                f"{task.name} has observations of {task.observations} and actions of {task.actions} numbers, "
                f"not shapes {seen.shape} and {done.shape}"
            )
        with jax.default_matmul_precision("float32"):
            first, second = question(self._belief, jnp.atleast_2d(seen), jnp.atleast_2d(task.scaled(done)))
        shape = seen.shape
        return np.asarray(first).reshape(shape), np.asarray(second).reshape(shape)


class CDPO(DeepAgent):
    """Conservative Dual Policy Optimization."""

    rule = "cdpo"


class PSRL(DeepAgent):
    """Posterior sampling."""

    rule = "psrl"


class HUCRL(DeepAgent):
    """Optimism by hallucinated control."""

    rule = "hucrl"


class Greedy(DeepAgent):
    """Greedy model exploitation."""

    rule = "greedy"


class MBPO(DeepAgent):
    """Model-based policy optimisation."""

    rule = "mbpo"


class METRPO(DeepAgent):
    """Model-ensemble TRPO."""

    rule = "me-trpo"


class DPI(DeepAgent):
    """Dual policy iteration."""

    rule = "dpi"


class SLBO(DeepAgent):
    """Stochastic lower bound optimisation."""

    rule = "slbo"


class SAC(DeepAgent):
    """Soft actor-critic."""

    rule = "sac"


class MPO(DeepAgent):
    """Maximum a posteriori policy optimisation."""

    rule = "mpo"


class PPO(DeepAgent):
    """Proximal policy optimisation."""

    rule = "ppo"


AGENTS: dict[str, type[DeepAgent]] = {
    agent.rule: agent for agent in (CDPO, PSRL, HUCRL, Greedy, MBPO, METRPO, SLBO, DPI, SAC, MPO, PPO)
}


def load(path: str | Path, *, task: Any = None, policy_only: bool = False) -> DeepAgent:
    """The agent of a run folder, from `cdpo train` or from `save`; nothing in the folder is run or changed.

    `task` must be given again if it was an environment or a function and not a name, or a name with a module to import.
    """
    folder = RunFolder.open(path)
    config, settings = folder.config, settings_of(folder)
    seeds, (arrays, known) = seeds_of(folder), policies(folder)
    if len(known) != len(seeds):  # before anything is made for each of them
        told = f"{len(known)} seeds, and its config.json says {len(seeds)}"
        raise UserError(f"{quoted(path)} holds {told}; restore a copy of it")
    word = config.get("task") if task is None else None
    kind = AGENTS[settings.rule.name]
    preset = str(config.get("preset"))
    agent = kind.__new__(kind)._begin(task_of(folder, task), word, settings, preset, len(seeds), seeds[0])
    agent._env_timeout = config.get("env_timeout")
    if policy_only or not has_state(folder):
        agent._policy_only = True
        _adopt_policy(agent._trainer, arrays, known)
        return agent
    agent._wall = go_on(folder, agent._trainer).wall
    agent.records = [record for record in records_of(folder) if record["episode"] < agent.episodes]
    return agent


def _adopt_policy(trainer: Trainer, arrays: Mapping[str, np.ndarray], known: Sequence[Record]) -> None:
    """The policies alone."""
    minds = trainer.minds()
    policy = restore(minds.policy, arrays, names)
    none = [np.zeros((0, trainer.row_width), np.float32)] * len(trainer.pupils)
    told = [{"steps": 0, "iterations": 0, **each} for each in known]
    trainer.restore(0, minds._replace(policy=policy), none, told)
