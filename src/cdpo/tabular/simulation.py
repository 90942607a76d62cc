"""One agent in one environment, all seeds in one compiled program.

Seeds run in chunks of a fixed number of lanes, seed k always in lane k mod LANES of chunk k // LANES: one executable
serves every chunk, so a seed has the same bits whatever it is run with. Time runs in segments of a fixed number of
blocks, each block's keys folded in from its index, so a longer run begins exactly as a shorter one.
"""

import itertools
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cdpo.errors import UserError
from cdpo.noise import fold, normal_from, uniform_pairs
from cdpo.tabular.agents.base import Agent, Memory, Plan, without_model
from cdpo.tabular.environments import Environment, Fixed
from cdpo.tabular.ledger import Entry, ledger_entry
from cdpo.tabular.mdp import FiniteMDP, draw, inverse_cdf_table
from cdpo.tabular.planning import (
    Known,
    Model,
    evaluate,
    optimal_average_reward,
    policy_iteration,
    uniform_policy,
)
from cdpo.tabular.posterior import Prior, Transitions

LANES = 8
_MOST = 10**9  # steps and numbers of seeds: they and their sums fit 32 bits
_MOST_SEEDS = 10**4
_MOST_PERIOD = 10**6  # the noise of a block is drawn at once
_MOST_RECORDS = 2**25  # blocks of all seeds, some ten numbers of each
FRESH = 200  # models that judge an update in the ledger
_JUDGED = ("model", "policy", "reward", "value", "memory")  # in the order in which a block comes by them
_BAD = "not a finite number"
_SEGMENT = 64  # blocks per call: short enough to report progress and to stop, long enough to cost nothing


class Carry(NamedTuple):
    """One seed between two blocks."""

    block: Array
    state: Array
    memory: Memory
    last: Plan


class Record(NamedTuple):
    """What a block leaves behind."""

    reward: Array  # sum of the rewards received
    expected: Array  # sum of the mean rewards of the transitions taken
    value_gap: Array  # E_start[V* - V_pi] of the block's policy
    entry: Entry | None
    bad: Array  # which quantity is not finite: the first of _JUDGED is one; zero if there is none


class World(NamedTuple):
    """One seed's MDP, its best values, and where the run begins; the same for every agent."""

    key: Array
    mdp: FiniteMDP
    state: Array
    optimum: Array  # E_start[V*]
    average: Array  # optimal average reward


def _world(environment: Environment, root: Array, seed: Array) -> World:
    key = jax.random.fold_in(root, seed)
    mdp = environment.make(fold(key, 0))
    state = draw(inverse_cdf_table(mdp.start), uniform_pairs(key, ())[0])
    truth = Model.true(mdp)
    best, _ = policy_iteration(truth, Known.of(mdp), uniform_policy(mdp.allowed))
    optimum = mdp.start @ evaluate(truth, best, mdp.discount)
    return World(fold(key, 1), mdp, state, optimum, optimal_average_reward(mdp))


def _begin(agent: Agent, prior: Prior, world: World) -> Carry:
    first = uniform_policy(world.mdp.allowed)
    return Carry(jnp.array(0), world.state, agent.begin(world.mdp, prior), Plan(first, first, None))


def _blocks(agent: Agent, period: int, ledger: bool, segment: int, steps: Array, world: World, start: Carry) -> Any:
    """`segment` turns of the loop that all agents share: plan, act for `period` steps, learn.

    Steps past `steps` are void. Returns the new carry and the records, [segment].
    """
    mdp, known, truth = world.mdp, Known.of(world.mdp), Model.true(world.mdp)
    move, restarts = mdp.sampler(), inverse_cdf_table(mdp.start)

    def entry(before: Carry, plan: Plan, key: Array) -> Entry:
        assert plan.model is not None
        # Of the posterior that the plan was made on: the block itself is not known yet.
        fresh = before.memory.posterior.sample_set(known, key, FRESH)
        return ledger_entry(mdp, before.last, plan, plan.model, fresh)

    def block(carry: Carry, _: None) -> tuple[Carry, Record]:
        key = fold(world.key, carry.block)
        memory, plan = agent.plan(carry.memory, carry.state, fold(key, 0))
        noise = agent.noise(fold(key, 1), period, known)
        # Of the two halves of each pair, one moves the state and one makes the reward's noise.
        uniform, second = uniform_pairs(key, (period,))
        restart = draw(restarts, uniform_pairs(key, (period, 1), stream=1)[0])
        counts = (carry.block * period + jnp.arange(period) < steps).astype(jnp.float32)

        def step(at: tuple[Array, Memory], drawn: tuple[Any, ...]) -> tuple[tuple[Array, Memory], tuple[Array, Array]]:
            state, memory = at
            own, u, z, new = drawn
            action = agent.act(memory, state, own)
            successor, reward = move(state, action, u, z)
            memory = agent.learn(memory, Transitions(state, action, reward, successor, jnp.ones(())), own)
            # One index for the whole transition: every further output costs a kernel at every step.
            cell = (state * mdp.actions + action) * mdp.states + successor
            return (jnp.where(mdp.terminal[successor], new, successor), memory), (cell, reward)

        inputs = (noise, uniform, normal_from(second), restart)
        (state, memory), (cell, reward) = jax.lax.scan(step, (carry.state, memory), inputs)
        before, action, after = jnp.unravel_index(cell, mdp.transition.shape)
        memory = agent.absorb(memory, Transitions(before, action, reward, after, counts))

        earned = jnp.sum(reward * counts)
        value_gap = world.optimum - mdp.start @ evaluate(truth, plan.policy, mdp.discount)
        record = Record(
            reward=earned,
            expected=jnp.sum(mdp.reward_mean[before, action, after] * counts),
            value_gap=value_gap,
            entry=entry(carry, plan, fold(key, 2)) if ledger and plan.model else None,
            bad=_first_bad(plan.model, (plan.policy, plan.reference), earned, value_gap, memory),
        )
        return Carry(carry.block + 1, state, memory, without_model(plan)), record

    return jax.lax.scan(block, start, length=segment)


def _first_bad(*quantities: Any) -> Array:
    """The number, from one, of the first of these trees with a NaN or an infinity in it; zero if there is none."""
    parts = [[x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)] for tree in quantities]
    ends = np.cumsum([sum(x.size for x in part) for part in parts])
    # All side by side: at every block one reduction, where one for each array would be felt.
    finite = jnp.isfinite(jnp.concatenate([x.ravel() for part in parts for x in part]))
    first = jnp.min(jnp.where(finite, ends[-1], jnp.arange(ends[-1])))
    return jnp.where(first < ends[-1], 1 + jnp.sum(first >= ends), 0)


@partial(jax.jit, static_argnums=0)
def _worlds(environment: Environment, root: Array, seeds: Array) -> World:
    return jax.vmap(partial(_world, environment, root))(seeds)


@partial(jax.jit, static_argnums=(0, 1))
def _begin_chunk(agent: Agent, prior: Prior, worlds: World) -> Carry:
    return jax.vmap(partial(_begin, agent, prior))(worlds)


@partial(jax.jit, static_argnums=(0, 1, 2, 3), donate_argnums=(6,))
def _advance_chunk(
    agent: Agent, period: int, ledger: bool, segment: int, steps: Array, worlds: World, carry: Carry
) -> tuple[Carry, Record]:
    """`segment` blocks of every lane; records have axes [lane, block]."""
    return jax.vmap(partial(_blocks, agent, period, ledger, segment, steps))(worlds, carry)


@dataclass(frozen=True)
class Run:
    """What one agent did: arrays with one row per seed, one column per block; NaN from where a seed was stopped."""

    agent: Agent
    seeds: np.ndarray  # [n]
    steps: int
    period: int
    reward: np.ndarray  # [n, blocks]
    expected: np.ndarray  # [n, blocks]
    value_gap: np.ndarray  # [n, blocks]
    average: np.ndarray  # [n], optimal average reward of each seed's MDP
    ledger: Entry | None  # fields [n, blocks]
    stopped: dict[int, str] = field(default_factory=dict)  # seeds that bad numbers stopped: which, and where that was

    @property
    def ends(self) -> np.ndarray:
        """Number of steps after each block."""
        return np.minimum(self.period * np.arange(1, self.reward.shape[1] + 1), self.steps)


def check_counts(seeds: int, seed: int, steps: int, period: int, prefix: str = "") -> None:
    """Reject a run of no steps, and one of which more would be kept than fits anywhere."""
    counts = (("seeds", seeds, _MOST_SEEDS), ("steps", steps, _MOST), ("period", period, _MOST_PERIOD))
    for name, number, most in counts:
        if not 1 <= number <= most:
            raise UserError(f"{prefix}{name} must be between 1 and {most}, not {number}")
    if not 0 <= seed <= _MOST:
        raise UserError(f"{prefix}seed must be between 0 and {_MOST}, not {seed}")
    blocks = math.ceil(steps / period)
    if seeds * blocks > _MOST_RECORDS:
        raise UserError(
            f"{seeds} seeds of {blocks} blocks are more than the {_MOST_RECORDS} that can be kept; take fewer "
            f"{prefix}seeds or {prefix}steps, or a longer {prefix}period"
        )


Watch = Callable[[int, np.ndarray, Carry], None]
"""Called with (steps done, seeds [lanes], carry) between segments of one chunk."""


def simulate(
    environment: Environment | FiniteMDP,
    agent: Agent,
    *,
    seeds: int = 10,
    seed: int = 0,
    steps: int,
    period: int | None = None,
    prior: Prior = Prior(),
    ledger: bool = False,
    segment: int = _SEGMENT,
    watch: Watch | None = None,
    progress: Callable[[int], None] | None = None,
) -> Run:
    """Run an agent for `steps` steps with seeds `seed`, ..., `seed + seeds - 1`.

    `period` is the number of steps between two plans (the environment's own by default), `progress` is called with
    the agent-steps just done, `watch` sees every seed's whole state between segments. A seed ends with the first NaN or
    infinity among its models, policies, rewards, values and memory; the others go on as if it went on as well.
    """
    if isinstance(environment, FiniteMDP):
        environment = Fixed(environment, environment.states + 1)
    period = environment.period if period is None else period
    check_counts(seeds, seed, steps, period)
    blocks = math.ceil(steps / period)
    segment = min(segment, blocks)
    wanted = np.arange(seed, seed + seeds)

    stop = threading.Event()

    def run_chunk(lanes: np.ndarray) -> tuple[Record, np.ndarray, np.ndarray]:
        worlds = _worlds(environment, jax.random.key(0), jnp.asarray(lanes))
        carry = _begin_chunk(agent, prior, worlds)
        mine = np.isin(lanes, wanted)
        live = mine
        records: list[Record] = []
        for first in range(0, blocks, segment):
            if stop.is_set():
                raise InterruptedError
            if watch is not None:
                watch(first * period, lanes, carry)
            if live.any():
                carry, record = _advance_chunk(agent, period, ledger, segment, jnp.asarray(steps), worlds, carry)
                records.append(jax.tree.map(np.asarray, record))
                live = live & (records[-1].bad == 0).all(axis=1)
            if progress is not None:
                progress(int(mine.sum()) * (min((first + segment) * period, steps) - first * period))
        if watch is not None:
            watch(steps, lanes, carry)
        joined = jax.tree.map(lambda *parts: np.concatenate(parts, axis=1)[:, :blocks], *records)
        return _until_bad(joined, blocks), np.asarray(worlds.average), np.asarray(joined.bad)

    chunks = list(_chunks(wanted))
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        try:
            parts = list(pool.map(run_chunk, chunks))
        except BaseException:
            stop.set()  # the other chunks end with their segment, so that Ctrl-C is answered at once
            raise
    mine = np.isin(np.concatenate(chunks), wanted)
    record: Any = jax.tree.map(lambda *rows: np.concatenate(rows)[mine], *(part[0] for part in parts))
    average = np.concatenate([part[1] for part in parts])[mine]
    bad = [row for part in parts for row in part[2]]
    stopped = _stopped(wanted, itertools.compress(bad, mine), period)
    return Run(
        agent, wanted, steps, period, record.reward, record.expected, record.value_gap, average, record.entry, stopped
    )


def _stopped(seeds: np.ndarray, bad: Iterable[np.ndarray], period: int) -> dict[int, str]:
    """Which seeds have a bad block, and what was bad in the first of them."""
    found = {}
    for seed, row in zip(seeds, bad, strict=True):
        block = int(np.argmax(row > 0))
        if row[block]:
            what = _JUDGED[row[block] - 1]
            found[int(seed)] = f"the {what} in block {block + 1}, after {block * period} steps: {_BAD}"
    return found


def _until_bad(record: Record, blocks: int) -> Record:
    """Every row's numbers before its first bad block, and NaN from there on, [lanes, blocks]."""
    bad = record.bad > 0
    ends = np.where(bad.any(axis=1), bad.argmax(axis=1), blocks)[:, None]

    def kept(numbers: np.ndarray) -> np.ndarray:
        whole = np.pad(numbers, ((0, 0), (0, blocks - numbers.shape[1])))
        return np.where(np.arange(blocks) < ends, whole, np.float32(np.nan))

    return jax.tree.map(kept, record)


def _chunks(seeds: np.ndarray) -> Iterator[np.ndarray]:
    """The whole chunks that contain the seeds; lanes nobody asked for are run and dropped.

    An accelerator takes all seeds at once: there width is cheap, and equal bits are not promised.
    """
    if jax.default_backend() != "cpu":
        yield seeds
        return
    for chunk in range(seeds[0] // LANES, seeds[-1] // LANES + 1):
        yield np.arange(chunk * LANES, (chunk + 1) * LANES)
