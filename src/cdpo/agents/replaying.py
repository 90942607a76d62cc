"""Agents without a model: off-policy learners on the replay of real transitions.

An iteration is an episode, or a stretch of one: for each of its steps `ratio` updates of the learner, all after its
end. Where others learn between two steps, these have as many updates on as many transitions, only later.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cdpo.agents.base import Rule, program
from cdpo.agents.model_free import ModelFree
from cdpo.dynamics.ensemble import feature_size
from cdpo.dynamics.networks import Normaliser
from cdpo.dynamics.replay import Experience, Replay
from cdpo.errors import UserError
from cdpo.solvers.base import Metrics, Starts
from cdpo.solvers.offpolicy import OffPolicyLearner
from cdpo.solvers.policy import Policy

_MOST_UPDATES = 1000  # for each real step


@dataclass(frozen=True)
class OffPolicy(Rule):
    """How much is learned from the replay."""

    part: ClassVar[str] = "replay"

    batch: int = 256
    """Transitions in a batch."""
    ratio: float = 1.0
    """Updates of the learner for each real step."""

    def __post_init__(self) -> None:
        """So many updates that they can be counted."""
        super().__post_init__()
        if self.ratio > _MOST_UPDATES:
            raise UserError(f"replay.ratio must be at most {_MOST_UPDATES}, not {self.ratio:g}")


class PolicyMind(NamedTuple):
    """All that one seed has learned."""

    policy: Policy
    learner: Any  # its state
    rows: Array  # int32, those that were learned from


class Replaying(ModelFree):
    """Learns from batches of all transitions so far. Its networks see observations as they are."""

    rule: OffPolicy
    learner: OffPolicyLearner

    @partial(jax.jit, static_argnums=1)
    def begin(self, hidden: tuple[int, ...], key: Array) -> PolicyMind:
        """Untrained."""
        inputs = Normaliser.identity(feature_size(self.task))
        policy = Policy.create(self.task, inputs, hidden, jax.random.fold_in(key, 1))
        state = self.learner.begin(policy, 1, jax.random.fold_in(key, 2))
        return PolicyMind(policy, state, jnp.zeros((), jnp.int32))

    @program
    def learn(
        self, mind: PolicyMind, replay: Replay, starts: Starts, iteration: Array, key: Array
    ) -> tuple[PolicyMind, Metrics]:
        """As many updates as the new rows ask for."""
        now = jax.random.fold_in(jax.random.fold_in(key, 1), iteration)
        objective = self._objective(mind.policy)
        # Of all rows so far, less those of before: no fraction of an update is ever lost.
        asked = (self.rule.ratio * jnp.stack([mind.rows, replay.size])).astype(jnp.int32)

        def update(number: Array, carry: tuple[Policy, Any, Metrics]) -> tuple[Policy, Any, Metrics]:
            policy, state, total = carry
            draw, learn = jax.random.split(jax.random.fold_in(now, number))
            batches = self._draw(replay, draw)
            policy, state, metrics = self.learner.update(policy, state, batches, objective, learn)
            return policy, state, jax.tree.map(jnp.add, total, metrics)

        def some(carry: tuple[Policy, Any]) -> Metrics:
            return self.learner.update(*carry, self._draw(replay, now), objective, now)[2]

        none = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), jax.eval_shape(some, (mind.policy, mind.learner)))
        count = asked[1] - asked[0]
        policy, state, total = jax.lax.fori_loop(0, count, update, (mind.policy, mind.learner, none))
        metrics = jax.tree.map(lambda sum_: sum_ / count, total)  # not a number where there was none
        return PolicyMind(policy, state, replay.size), {**metrics, "updates": count}

    def _draw(self, replay: Replay, key: Array) -> Experience:
        """Batches [K, 1, B] of single steps."""
        step = replay.draw(key, (self.learner.batches, 1, self.rule.batch))
        follows = self.discount * (1 - step.terminated)
        return Experience(step.observation, step.action, step.reward, step.next, follows, jnp.ones_like(follows))
