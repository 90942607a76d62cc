"""Agents without a model: on-policy learners on the newest real episodes.

An iteration is as many episodes as give `steps` real steps. The policy rests meanwhile; then the learner goes through
these steps, and they are forgotten.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from cdpo.agents.base import Rule, program
from cdpo.agents.model_free import ModelFree
from cdpo.dynamics.ensemble import chosen, feature_size
from cdpo.dynamics.networks import Normaliser, activated, orthogonal
from cdpo.dynamics.replay import Replay, Transition
from cdpo.solvers.base import Metrics, Size, Starts
from cdpo.solvers.critics import traced
from cdpo.solvers.onpolicy import OnPolicyLearner
from cdpo.solvers.policy import Policy

_QUIET = 0.01  # gain of the policy's last layer: at first it does nothing anywhere


@dataclass(frozen=True)
class OnPolicy(Rule):
    """How much is lived through before it is learned from."""

    part: ClassVar[str] = "newest"

    steps: int = 2048
    """Real steps of an iteration, rounded up to whole episodes of the task's time limit."""
    annealed: float = 1e6
    """Real steps over which the learning rate falls to zero, in a straight line."""


class NewestMind(NamedTuple):
    """All that one seed has learned."""

    policy: Policy
    learner: Any  # its state
    rows: Array  # int32, those that were learned from
    told: Metrics  # of the last iteration, which made the policy


class Newest(ModelFree):
    """Learns from what the policy itself did since the last iteration. Networks see z-scores of all data so far."""

    rule: OnPolicy
    learner: OnPolicyLearner

    @property
    def steps(self) -> int:
        """Of an iteration: where every episode lasts until the time limit, none is left over."""
        return -(-self.rule.steps // self.task.horizon) * self.task.horizon

    @partial(jax.jit, static_argnums=1)
    def begin(self, hidden: tuple[int, ...], key: Array) -> NewestMind:
        """Untrained, with the authors' tanh in hidden layers; the last layer of the policy says next to nothing."""
        first, second, third = (jax.random.fold_in(key, number) for number in (1, 2, 3))
        policy = Policy.create(self.task, Normaliser.identity(feature_size(self.task)), hidden, first)
        policy = eqx.tree_at(lambda p: p.net, policy, orthogonal(policy.net, first, _QUIET))
        state = self.learner.begin(policy, 1, second)
        state = state._replace(critics=orthogonal(state.critics, third))
        policy, state = activated((policy, state), "tanh")
        blank = Replay.empty(self.task.observations, self.task.actions, self.steps)
        told = jax.eval_shape(lambda: self._learned(policy, state, blank, policy.inputs, key)[2])
        none = jax.tree.map(lambda leaf: jnp.full(leaf.shape, jnp.nan), told)
        return NewestMind(policy, state, jnp.zeros((), jnp.int32), none)

    @program
    def learn(
        self, mind: NewestMind, replay: Replay, starts: Starts, iteration: Array, key: Array
    ) -> tuple[NewestMind, Metrics]:
        """Once enough was lived through; otherwise the policy stays as it is."""
        now = jax.random.fold_in(jax.random.fold_in(key, 1), iteration)
        inputs = Normaliser.of(self.task.features(replay.transitions().observation), replay.valid)
        # So far there are random episodes, which are not the policy's: they show how observations lie, and no more.
        first = mind.rows == 0
        rows = jnp.where(first, replay.size, mind.rows)
        policy = eqx.tree_at(lambda p: p.inputs, mind.policy, chosen(first, inputs, mind.policy.inputs))
        due = replay.size - rows >= self.steps

        def turn(_: int, carry: tuple[Policy, Any, Metrics]) -> tuple[Policy, Any, Metrics]:
            policy, state, _told = carry
            return self._learned(policy, state, replay, inputs, now)

        # A loop of one turn or none: with seeds side by side it is left out where none of them is due.
        start = policy, mind.learner, mind.told
        policy, state, told = jax.lax.fori_loop(0, due.astype(jnp.int32), turn, start)
        mind = NewestMind(policy, state, jnp.where(due, replay.size, rows), told)
        return mind, {**told, "updates": due.astype(jnp.int32)}

    def _learned(
        self, policy: Policy, state: Any, replay: Replay, inputs: Normaliser, key: Array
    ) -> tuple[Policy, Any, Metrics]:
        """From the last steps; then the networks are told how all data lie."""
        newest = replay.transitions(replay.size - self.steps + jnp.arange(self.steps))
        taken = jax.tree.map(lambda leaf: leaf[:, None, None], newest)
        leads = leads_on(taken)
        left = jnp.maximum(1 - replay.size / self.rule.annealed, 0.0)
        rate = (self.learner.settings.learning_rate * left).astype(jnp.float32)
        learner = eqx.tree_at(lambda each: each.settings.learning_rate, self.learner, rate)
        earned = traced(taken.reward, leads * (1 - taken.terminated), jnp.zeros_like(taken.reward), self.discount, 1.0)
        size = Size(jnp.sqrt(jnp.mean(taken.reward**2)), jnp.sqrt(jnp.mean(earned**2)))
        state = learner.renormalised(state, policy, policy, size)
        policy, state, told = learner.learn(policy, state, taken, self._objective(policy), key, leads)
        after = policy.renormalised(inputs)
        return after, learner.renormalised(state, policy, after, size), {**told, "learning_rate": rate}


def leads_on(taken: Transition) -> Array:
    """1.0 where a step [H, ...] leads to the one after it, and 0.0 where another episode begins there.

    An episode that begins in the very state in which the last was cut off goes on as far as anyone can tell.
    """
    same = jnp.all(taken.next[:-1] == taken.observation[1:], axis=-1)
    return jnp.concatenate([same, jnp.zeros_like(same[:1])]).astype(taken.reward.dtype)
