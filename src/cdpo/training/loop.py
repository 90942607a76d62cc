"""The loop: for every seed an episode, what was learned from it, and the next.

episode 0       uniform actions, and so in as many more as the settings say
episode t       learn from all episodes before (cdpo.agents), then act by pi_t, and evaluate it; or so by stretches
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from threadpoolctl import ThreadpoolController

from cdpo.agents import Agent, Mind, ModelBased
from cdpo.dynamics.replay import Replay
from cdpo.errors import UserError
from cdpo.signals import shielded
from cdpo.solvers.base import Starts
from cdpo.solvers.policy import HostPolicy
from cdpo.tasks import Task
from cdpo.training.collect import Life, training_life
from cdpo.training.lanes import chunks_of, join, on_threads, one_by_one, over_lanes, stack
from cdpo.training.pupils import BAD, Pupil, bad_function, enrolled, examined, live
from cdpo.training.settings import LoopSettings, Settings
from cdpo.training.sizes import check_size, row_width

Record = dict[str, Any]

# The buffer doubles whenever it is full, and then programs are compiled anew: at first it has room for many episodes.
_FIRST_EPISODES = 128
_FIRST_ROWS = 1 << 17  # at most, however long they are


class Chunk(NamedTuple):
    """Seeds that are computed together; the arrays have a leading axis of them."""

    pupils: list[Pupil]
    agent: Agent
    starting: Array  # [W, 3], weights of initial, visited and broadly drawn states among the starts of rollouts
    keys: Array
    initial: Array  # [W, I, d]
    mind: Mind
    replay: Replay


class Lived(NamedTuple):
    """One episode of a trainer: the records of its seeds, and the rows to keep, None where a seed has stopped."""

    records: list[Record]
    rows: list[np.ndarray | None]


Keep = Callable[[Sequence[Lived]], None]
_Lane = tuple[Record, np.ndarray] | None  # of one seed; None where it has stopped


class Trainer:
    """Agents of several seeds on one task."""

    def __init__(self, task: Task, settings: Settings | Sequence[Settings], seeds: Sequence[int]) -> None:
        """Untrained, before episode 0. With settings for each seed, these may differ in numbers that are no shapes."""
        self.task = task
        each = [settings] * len(seeds) if isinstance(settings, Settings) else list(settings)
        for one in each:
            check_size(one, task)
        self.settings = each[0]
        self.episode = 0  # the next one
        self._learn = over_lanes(lambda agent, *rest: agent.learn(*rest))
        self._judge = over_lanes(lambda agent, *rest: agent.judge(*rest))
        self._append = over_lanes(_append)
        self._finite_parts = over_lanes(_finite_parts)
        # An environment that all seeds share can live through one episode at a time.
        self._each = one_by_one if task.shared else on_threads
        self._blas = ThreadpoolController()
        if task.shared and len(seeds) > 1 and self.settings.loop.stretch:
            raise UserError(
                "seeds that share an environment cannot learn within episodes: make one for each, or say loop.stretch 0"
            )
        if len({program_of(settings) for settings in each}) > 1:
            raise UserError("seeds side by side may differ in numbers, but not in shapes, words or what is of the loop")
        self.chunks = self._each(self._begin, chunks_of(list(zip(seeds, each, strict=True))))
        if not self.going:
            raise UserError(f"{task.name} cannot begin: {self.pupils[0].stopped}; mend it, cdpo check-env tries it")

    @property
    def pupils(self) -> list[Pupil]:
        """All seeds in order."""
        return [pupil for chunk in self.chunks for pupil in chunk.pupils]

    @property
    def going(self) -> bool:
        """Whether any seed is left."""
        return any(pupil.stopped is None for pupil in self.pupils)

    def advance(self, *, last: bool = False, keep: Callable[[Lived], None] = lambda lived: None) -> Lived:
        """One more episode of every seed that goes on; the `last` of a run is evaluated in any case.

        It is all or nothing: interrupted, the trainer is as it was before, and nothing went to `keep`.
        """
        return advance_together([self], last=last, keep=lambda lived: keep(lived[0]))[0]

    def policy(self, index: int) -> HostPolicy:
        """The acting policy of the seed at `index`, on the host."""
        return HostPolicy(self.mind(index).policy)

    def mind(self, index: int) -> Mind:
        """What the seed at `index` has learned."""
        chunk, lane = [(chunk, lane) for chunk in self.chunks for lane in range(len(chunk.pupils))][index]
        return jax.tree.map(lambda leaf: leaf[lane], chunk.mind)

    @property
    def row_width(self) -> int:
        """Numbers in a row of the replay."""
        return row_width(self.task)

    def rows(self) -> list[np.ndarray]:
        """All real transitions of each seed, in the order they were made."""
        lanes = [(chunk.replay, lane) for chunk in self.chunks for lane in range(len(chunk.pupils))]
        return [np.array(replay.rows[lane, : int(replay.size[lane])]) for replay, lane in lanes]

    def minds(self) -> Mind:
        """What all seeds have learned, with a leading axis of seeds."""
        return join([chunk.mind for chunk in self.chunks])

    def restore(self, episode: int, minds: Mind, rows: Sequence[np.ndarray], pupils: Sequence[Record]) -> None:
        """Go on before `episode`: `minds` as `minds()` gave them, and the rows and the state of each seed."""
        first = 0
        for number, chunk in enumerate(self.chunks):
            here = slice(first, first + len(chunk.pupils))
            first = here.stop
            replay = self._filled(chunk.replay, rows[here])
            mind = jax.tree.map(lambda leaf, here=here: leaf[here], minds)
            known = [
                replace(
                    pupil,
                    **{name: told[name] for name in ("steps", "iterations", "evaluated")},
                    stopped=told["stopped"] or pupil.stopped,  # then, or now at the beginning
                )
                for pupil, told in zip(chunk.pupils, pupils[here], strict=True)
            ]
            self.chunks[number] = chunk._replace(pupils=known, mind=mind, replay=replay)
        self.episode = episode

    def _filled(self, replay: Replay, rows: Sequence[np.ndarray]) -> Replay:
        """A replay that holds the rows of each lane."""
        capacity = capacity_for(self.task, max(len(each) for each in rows))
        filled = np.zeros((len(rows), capacity, replay.rows.shape[-1]), np.float32)
        for lane, each in enumerate(rows):
            filled[lane, : len(each)] = each
        sizes = np.array([len(each) for each in rows], np.int32)
        return eqx.tree_at(lambda r: (r.rows, r.size), replay, (jnp.array(filled), jnp.array(sizes)))

    @property
    def _learns(self) -> bool:
        """Whether the episode to come is one of a policy."""
        return self.episode >= self.settings.loop.random

    def _begin(self, told: list[tuple[int, Settings]]) -> Chunk:
        pupils, initial = zip(*(enrolled(self.task, seed) for seed, _ in told), strict=True)
        keys = [jax.random.fold_in(jax.random.key(0), seed) for seed, _ in told]
        agents = [settings.agent(self.task) for _, settings in told]
        hidden = self.settings.hidden
        minds = [agent.begin(hidden, jax.random.fold_in(key, 2)) for agent, key in zip(agents, keys, strict=True)]
        starting = [[each.initial, each.visited, each.broad] for each in (settings.starts for _, settings in told)]
        empty = Replay.empty(self.task.observations, self.task.actions, capacity_for(self.task, 0))
        chunk = Chunk(
            list(pupils),
            stack(agents),
            jnp.array(starting),
            jnp.stack(keys),
            jnp.array(np.stack(initial)),
            stack(minds),
            stack([empty] * len(told)),
        )
        # Numbers that came from Python are of weaker type than what programs return, and would compile them twice.
        return chunk._replace(mind=jax.tree.map(lambda x: jax.lax.convert_element_type(x, x.dtype), chunk.mind))

    def _advance(self, chunk: Chunk, evaluate: bool) -> tuple[Chunk, list[_Lane]]:
        """By stretches of an episode, or all at once: learn, act, remember."""
        before = chunk
        lives = {lane: self._begun(chunk.pupils[lane]) for lane in _going(chunk)}
        acting: dict[int, HostPolicy | None] = {}
        told: dict[int, Record] = {}
        while active := [lane for lane in _going(chunk) if not lives[lane].over]:
            metrics: dict[str, np.ndarray] = {}
            if self._learns:
                chunk, metrics = self._learned(chunk, active)
                active = [lane for lane in active if lane in _going(chunk)]
            acting.update({lane: self._host_policy(chunk.mind, lane) for lane in active})
            came = self._each(lambda lane: self._stretch(lives[lane], acting[lane]), active)
            new = {}
            for lane, rows in zip(active, came, strict=True):
                if isinstance(rows, str):
                    chunk = _stopped(chunk, lane, rows)
                else:
                    new[lane] = rows
            chunk = chunk._replace(replay=self._remember(chunk.replay, new))
            if self._learns and new:
                counts = [len(new[lane]) if lane in new else 1 for lane in range(len(chunk.pupils))]
                judged = self._judge(chunk.agent, chunk.mind, chunk.replay, jnp.array(counts, jnp.int32))
                metrics |= jax.device_get(judged)
            told.update({lane: _lane(metrics, lane) for lane in new})
        pupils, whole = list(chunk.pupils), _going(chunk)
        lanes: list[_Lane] = [None] * len(pupils)

        def record(lane: int) -> tuple[Pupil, Record]:
            return self._record(pupils[lane], lives[lane], acting[lane], evaluate, told[lane])

        for lane, (pupil, entry) in zip(whole, self._each(record, whole), strict=True):
            pupils[lane] = pupil
            lanes[lane] = entry, lives[lane].rows
        return _without(chunk._replace(pupils=pupils), before, [lane for lane in lives if lane not in whole]), lanes

    def _learned(self, chunk: Chunk, lanes: Sequence[int]) -> tuple[Chunk, dict[str, np.ndarray]]:
        """After one iteration of some seeds; one whose numbers turned bad keeps what it had, and stops."""
        width = len(chunk.pupils)
        pupils = [replace(p, iterations=p.iterations + (n in lanes)) for n, p in enumerate(chunk.pupils)]
        chunk = chunk._replace(pupils=pupils)
        blank = jnp.zeros((width, self.task.observations))
        starts = Starts(chunk.initial, chunk.replay, blank, blank, chunk.starting)
        iteration = jnp.array([pupil.iterations for pupil in pupils], jnp.int32)
        mind, metrics = self._learn(chunk.agent, chunk.mind, chunk.replay, starts, iteration, chunk.keys)
        finite, metrics = jax.device_get((self._finite_parts(chunk.agent, mind), metrics))
        rests = np.array([lane not in lanes for lane in range(width)])
        for lane in lanes:
            broken = [name for name, good in finite.items() if not good[lane]]
            if broken:
                rows = chunk.replay.rows[lane, : int(chunk.replay.size[lane])]
                planned = isinstance(chunk.agent, ModelBased)  # on models, which pay by what is known of the task
                first = (planned and bad_function(self.task, rows)) or broken[0]
                chunk = _stopped(chunk, lane, f"the {first} in iteration {pupils[lane].iterations}: {BAD}")
                rests[lane] = True
        if rests.any():
            kept = jnp.array(rests)
            mind = jax.tree.map(
                lambda old, new: jnp.where(kept.reshape(-1, *(1,) * (new.ndim - 1)), old, new), chunk.mind, mind
            )
        return chunk._replace(mind=mind), metrics

    def _begun(self, pupil: Pupil) -> Life:
        told = self.settings.loop
        noise = told.noise if self._learns else told.random_noise
        return training_life(pupil.environment, self.task, pupil.seed, self.episode, noise, random=not self._learns)

    def _stretch(self, life: Life, policy: HostPolicy | None) -> np.ndarray | str:
        """Live through the next one. A random episode is one, as nobody learns meanwhile."""
        steps = self.settings.loop.stretch if self._learns else 0
        return live(life, policy, steps or self.task.horizon, self.episode)

    def _host_policy(self, mind: Mind, lane: int) -> HostPolicy | None:
        return HostPolicy(jax.tree.map(lambda leaf: leaf[lane], mind.policy)) if self._learns else None

    def _remember(self, replay: Replay, rows: dict[int, np.ndarray]) -> Replay:
        """With the rows of some lanes; when one of them is full, the buffer grows for all."""
        width, capacity, columns = replay.rows.shape
        padded = np.zeros((width, self.task.horizon, columns), np.float32)
        counts = np.zeros(width, np.int32)
        for lane, new in rows.items():
            padded[lane, : len(new)] = new
            counts[lane] = len(new)
        replay = self._append(replay, jnp.array(padded), jnp.array(counts))
        needed = capacity_for(self.task, int(jnp.max(replay.size)))
        return _with_capacity(replay, needed) if needed > capacity else replay

    def _record(
        self, pupil: Pupil, life: Life, policy: HostPolicy | None, evaluate: bool, metrics: Record
    ) -> tuple[Pupil, Record]:
        pupil = replace(pupil, steps=pupil.steps + life.steps)
        result = change = None
        if evaluate and policy is not None:
            found = examined(pupil, self.task, policy, self.episode, self.settings.loop.evaluation_episodes)
            if isinstance(found, str):  # the episode itself is whole, and kept
                pupil = replace(pupil, stopped=found)
            else:
                result, change = found, None if pupil.evaluated is None else _known(found - pupil.evaluated)
                pupil = replace(pupil, evaluated=found)
        return pupil, {
            "seed": pupil.seed,
            "episode": self.episode,
            "env_steps": pupil.steps,
            "return": life.total,
            "eval_return": result,
            "eval_change": change,
            "episode_length": life.steps,
            "terminated": life.ended,
            **metrics,
        }


def advance_together(
    trainers: Sequence[Trainer], *, last: bool = False, keep: Keep = lambda lived: None
) -> list[Lived]:
    """One more episode of trainers that are equally far and run the same program: on an accelerator, in one go.

    They may differ in seeds and in numbers. On a CPU each ends with the bits that it would have alone. What they lived
    through goes to `keep`: no interrupt comes between a trainer that has it behind it and whoever keeps it.
    """
    first = trainers[0]
    assert {(t.task, t.episode, program_of(t.settings)) for t in trainers} == {
        (first.task, first.episode, program_of(first.settings))
    }
    evaluate = last or first.episode % first.settings.loop.evaluate == 0

    def advance(group: list[Chunk]) -> tuple[list[Chunk], list[_Lane]]:
        # Products of fewer bits, the default of some accelerators, are known to hurt. The setting is per thread.
        with jax.default_matmul_precision("float32"):
            chunk, lanes = first._advance(_merged(group), evaluate)
        return _parted(chunk, [len(part.pupils) for part in group]), lanes

    groups = chunks_of([chunk for trainer in trainers for chunk in trainer.chunks])
    # Policies act on threads, one row at a time: products on several threads each would only get in their way.
    with first._blas.limit(limits=1, user_api="blas"):
        results = first._each(advance, groups)
    chunks = iter([chunk for part, _ in results for chunk in part])
    lanes = iter([lane for _, each in results for lane in each])
    lived, after = [], []
    for trainer in trainers:
        own = [next(lanes) for _ in trainer.pupils]
        lived.append(Lived([lane[0] for lane in own if lane], [lane[1] if lane else None for lane in own]))
        after.append([next(chunks) for _ in trainer.chunks])
    with shielded():
        for trainer, own_chunks in zip(trainers, after, strict=True):
            trainer.episode += 1
            trainer.chunks = own_chunks
        keep(lived)
    return lived


def capacity_for(task: Task, size: int) -> int:
    """Rows of a replay that has `size` of them and room for one more episode.

    It follows from the size alone: a run resumed has the arrays it had before.
    """
    capacity = min(1 << (_FIRST_EPISODES * task.horizon - 1).bit_length(), _FIRST_ROWS)
    while size + task.horizon > capacity:
        capacity *= 2
    return capacity


def program_of(settings: Settings) -> Hashable:
    """Equal for settings that differ only in numbers that are values of one compiled program."""
    fixed = LoopSettings | str
    return tuple(each if isinstance(each, fixed) else jax.tree.structure(each) for each in vars(settings).values())


def _merged(chunks: Sequence[Chunk]) -> Chunk:
    """One chunk of all seeds."""
    if len(chunks) == 1:
        return chunks[0]
    roomiest = max(chunk.replay.capacity for chunk in chunks)
    chunks = [chunk._replace(replay=_with_capacity(chunk.replay, roomiest)) for chunk in chunks]
    arrays = join([chunk._replace(pupils=[]) for chunk in chunks])
    return arrays._replace(pupils=[pupil for chunk in chunks for pupil in chunk.pupils])


def _parted(chunk: Chunk, widths: Sequence[int]) -> list[Chunk]:
    """The opposite."""
    if len(widths) == 1:
        return [chunk]
    parts, start = [], 0
    for width in widths:
        here = slice(start, start + width)
        arrays = jax.tree.map(lambda leaf, here=here: leaf[here], chunk._replace(pupils=[]))
        parts.append(arrays._replace(pupils=chunk.pupils[here]))
        start = here.stop
    return parts


def _with_capacity(replay: Replay, capacity: int) -> Replay:
    """The same rows of all lanes, in at least as much room."""
    width, rows, columns = replay.rows.shape
    more = jnp.zeros((width, capacity - rows, columns))
    return eqx.tree_at(lambda r: r.rows, replay, jnp.concatenate([replay.rows, more], axis=1))


def _going(chunk: Chunk) -> list[int]:
    return [lane for lane, pupil in enumerate(chunk.pupils) if pupil.stopped is None]


def _stopped(chunk: Chunk, lane: int, why: str) -> Chunk:
    """Without the seed of one lane."""
    pupils = list(chunk.pupils)
    pupils[lane] = replace(pupils[lane], stopped=why)
    return chunk._replace(pupils=pupils)


def _without(chunk: Chunk, before: Chunk, lanes: Sequence[int]) -> Chunk:
    """Without the rows of an episode of lanes that stopped in the middle of it."""
    size = chunk.replay.size
    for lane in lanes:
        size = size.at[lane].set(before.replay.size[lane])
    return chunk._replace(replay=eqx.tree_at(lambda replay: replay.size, chunk.replay, size))


def _lane(metrics: dict[str, np.ndarray], lane: int) -> Record:
    """None is what is not known: the same before it is written down and after."""
    return {name: _known(value[lane].tolist()) for name, value in metrics.items()}


def _known(told: Any) -> Any:
    if isinstance(told, list):
        return [_known(each) for each in told]
    return None if isinstance(told, float) and not isfinite(told) else told


_append = jax.jit(Replay.append)


@jax.jit
def _finite_parts(agent: Agent, mind: Mind) -> dict[str, Array]:
    """Whether each part holds numbers only."""

    def finite(tree: Any) -> Array:
        leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
        return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))

    return {name: finite(part) for name, part in agent.parts(mind).items()}
