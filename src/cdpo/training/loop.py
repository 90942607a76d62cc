"""The loop: for every seed an episode, what was learned from it, and the next.

episode 0       uniform actions
episode t       learn from all episodes before (cdpo.agents), then act by pi_t, and evaluate it
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cdpo.agents import Mind
from cdpo.dynamics.replay import Replay
from cdpo.solvers.base import Starts
from cdpo.solvers.policy import HostPolicy
from cdpo.tasks import Task
from cdpo.tasks.base import Environment
from cdpo.training.collect import Episode, evaluation, initial_states, training_episode
from cdpo.training.lanes import chunks_of, on_threads, over_lanes, stack
from cdpo.training.settings import Settings

Record = dict[str, Any]


@dataclass
class Pupil:
    """What the host knows of one seed."""

    seed: int
    environment: Environment
    steps: int = 0  # in the real environment
    evaluated: float | None = None  # the last evaluation
    stopped: str | None = None  # why the seed goes on no more


class Chunk(NamedTuple):
    """Seeds that are computed together; the arrays have a leading axis of them."""

    pupils: list[Pupil]
    keys: Array
    initial: Array  # [W, I, d]
    mind: Mind
    replay: Replay


class Lived(NamedTuple):
    """One episode of one chunk: the records of its seeds, and the rows to keep, None where a seed has stopped."""

    records: list[Record]
    rows: list[np.ndarray | None]


class Trainer:
    """Agents of several seeds on one task."""

    def __init__(self, task: Task, settings: Settings, seeds: Sequence[int]) -> None:
        """Untrained, before episode 0."""
        self.task = task
        self.settings = settings
        self.agent = settings.agent(task)
        self.episode = 0  # the next one
        self._learn = over_lanes(self.agent.learn)
        self._judge = over_lanes(self.agent.judge)
        self._append = over_lanes(jax.jit(Replay.append))
        self._first_bad = over_lanes(jax.jit(_finite_parts))
        self.chunks = on_threads(self._begin, chunks_of(seeds))

    @property
    def pupils(self) -> list[Pupil]:
        """All seeds in order."""
        return [pupil for chunk in self.chunks for pupil in chunk.pupils]

    @property
    def going(self) -> bool:
        """Whether any seed is left."""
        return any(pupil.stopped is None for pupil in self.pupils)

    def advance(self, *, evaluate: bool = False) -> Lived:
        """One more episode of every seed that goes on; `evaluate` asks for an evaluation out of turn."""
        began = time.monotonic()
        evaluate = evaluate or self.episode % self.settings.loop.evaluate == 0
        results = on_threads(lambda chunk: self._advance(chunk, evaluate), self.chunks)
        self.chunks = [chunk for chunk, _ in results]
        self.episode += 1
        wall = round(time.monotonic() - began, 3)
        records = [{**record, "wall_s": wall} for _, lived in results for record in lived.records]
        return Lived(records, [rows for _, lived in results for rows in lived.rows])

    def policy(self, index: int) -> HostPolicy:
        """The acting policy of the seed at `index`, on the host."""
        return HostPolicy(self.mind(index).policy)

    def mind(self, index: int) -> Mind:
        """What the seed at `index` has learned."""
        chunk, lane = [(chunk, lane) for chunk in self.chunks for lane in range(len(chunk.pupils))][index]
        return jax.tree.map(lambda leaf: leaf[lane], chunk.mind)

    def _begin(self, seeds: list[int]) -> Chunk:
        pupils = [Pupil(seed, self.task.make()) for seed in seeds]
        keys = [jax.random.fold_in(jax.random.key(0), seed) for seed in seeds]
        hidden = self.settings.sac.hidden
        minds = [self.agent.begin(hidden, jax.random.fold_in(key, 2)) for key in keys]
        initial = np.stack([initial_states(pupil.environment, pupil.seed) for pupil in pupils])
        empty = Replay.empty(self.task.observations, self.task.actions)
        chunk = Chunk(pupils, jnp.stack(keys), jnp.array(initial), stack(minds), stack([empty] * len(seeds)))
        # Numbers that came from Python are of weaker type than what programs return, and would compile them twice.
        return chunk._replace(mind=jax.tree.map(lambda x: jax.lax.convert_element_type(x, x.dtype), chunk.mind))

    def _advance(self, chunk: Chunk, evaluate: bool) -> tuple[Chunk, Lived]:
        """Learn, act, remember."""
        if all(pupil.stopped is not None for pupil in chunk.pupils):
            return chunk, Lived([], [None] * len(chunk.pupils))
        mind: Mind = chunk.mind
        metrics: dict[str, np.ndarray] = {}
        if self.episode > 0:
            mind, metrics = self._learned(chunk)
        acting = {lane: self._host_policy(mind, lane) for lane in self._going(chunk)}
        episodes = {lane: self._live(chunk.pupils[lane], policy) for lane, policy in acting.items()}
        for lane, lived in episodes.items():
            if not np.isfinite(lived.rows).all():
                chunk.pupils[lane].stopped = f"data of episode {self.episode}"
        lanes = self._going(chunk)
        replay = self._remember(chunk.replay, {lane: episodes[lane].rows for lane in lanes})
        if self.episode > 0 and lanes:
            counts = [len(episodes[lane].rows) if lane in lanes else 1 for lane in range(len(chunk.pupils))]
            metrics |= jax.device_get(self._judge(mind.belief, replay, jnp.array(counts, jnp.int32)))
        records = [
            self._record(chunk.pupils[lane], episodes[lane], acting[lane], evaluate, _lane(metrics, lane))
            for lane in lanes
        ]
        rows = [episodes[lane].rows if lane in lanes else None for lane in range(len(chunk.pupils))]
        return chunk._replace(mind=mind, replay=replay), Lived(records, rows)

    def _learned(self, chunk: Chunk) -> tuple[Mind, dict[str, np.ndarray]]:
        """After one iteration; a seed whose numbers turned bad keeps what it had, and stops."""
        width = len(chunk.pupils)
        weights = jnp.array([self.settings.dyna.initial, self.settings.dyna.visited, self.settings.dyna.broad])
        blank = jnp.zeros((width, self.task.observations))
        starts = Starts(chunk.initial, chunk.replay, blank, blank, jnp.tile(weights, (width, 1)))
        iteration = jnp.full(width, self.episode, jnp.int32)
        mind, metrics = self._learn(chunk.mind, chunk.replay, starts, iteration, chunk.keys)
        finite, metrics = jax.device_get((self._first_bad(mind), metrics))
        bad = [False] * width
        for lane in self._going(chunk):
            broken = [name for name, good in finite.items() if not good[lane]]
            if broken:
                chunk.pupils[lane].stopped = f"{broken[0]} in iteration {self.episode}"
                bad[lane] = True
        if any(bad):
            kept = jnp.array(bad)
            mind = jax.tree.map(
                lambda old, new: jnp.where(kept.reshape(-1, *(1,) * (new.ndim - 1)), old, new), chunk.mind, mind
            )
        return mind, metrics

    def _live(self, pupil: Pupil, policy: HostPolicy | None) -> Episode:
        return training_episode(pupil.environment, self.task, policy, pupil.seed, self.episode)

    def _host_policy(self, mind: Mind, lane: int) -> HostPolicy | None:
        return HostPolicy(jax.tree.map(lambda leaf: leaf[lane], mind.policy)) if self.episode > 0 else None

    def _remember(self, replay: Replay, rows: dict[int, np.ndarray]) -> Replay:
        """With the rows of some lanes; the buffer doubles for all lanes when one of them is full."""
        width, capacity, columns = replay.rows.shape
        fullest = int(jnp.max(replay.size))
        while fullest + self.task.horizon > capacity:
            more = jnp.zeros((width, capacity, columns))
            replay = eqx.tree_at(lambda r: r.rows, replay, jnp.concatenate([replay.rows, more], axis=1))
            capacity *= 2
        padded = np.zeros((width, self.task.horizon, columns), np.float32)
        counts = np.zeros(width, np.int32)
        for lane, new in rows.items():
            padded[lane, : len(new)] = new
            counts[lane] = len(new)
        return self._append(replay, jnp.array(padded), jnp.array(counts))

    def _record(
        self, pupil: Pupil, episode: Episode, policy: HostPolicy | None, evaluate: bool, metrics: Record
    ) -> Record:
        pupil.steps += len(episode.rows)
        result = change = None
        if evaluate and policy is not None:
            count = self.settings.loop.evaluation_episodes
            returns = evaluation(pupil.environment, self.task, policy, pupil.seed, self.episode, count)
            result = float(np.mean(returns))
            change = None if pupil.evaluated is None else result - pupil.evaluated
            pupil.evaluated = result
        return {
            "seed": pupil.seed,
            "episode": self.episode,
            "env_steps": pupil.steps,
            "return": episode.total,
            "eval_return": result,
            "eval_change": change,
            "episode_length": len(episode.rows),
            "terminated": episode.ended,
            **metrics,
        }

    def _going(self, chunk: Chunk) -> list[int]:
        return [lane for lane, pupil in enumerate(chunk.pupils) if pupil.stopped is None]


def _lane(metrics: dict[str, np.ndarray], lane: int) -> Record:
    return {name: value[lane].tolist() for name, value in metrics.items()}


def _finite_parts(mind: Mind) -> dict[str, Array]:
    """Whether each part holds numbers only, in the order in which one spoils the next."""

    def finite(tree: Any) -> Array:
        leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
        return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))

    return {
        "the model": finite(mind.belief.ensemble),
        "the calibration": finite(mind.belief.calibration),
        "the solver's state": finite(mind.solver_state),
        "the policy": finite(mind.policy),
    }
