"""A plain actor-critic: REINFORCE (Williams 1992) with learned values as its baseline."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from cdpo.dynamics.replay import Transition
from cdpo.solvers.base import Metrics, Objective
from cdpo.solvers.onpolicy import OnPolicyLearner, OnPolicySettings, OnPolicyState
from cdpo.solvers.policy import Gaussian, Policy


@dataclass(frozen=True)
class ActorCriticSettings(OnPolicySettings):
    """The learner actor-critic."""

    part: ClassVar[str] = "actor_critic"

    critic_steps: int = 4
    """Gradient steps of the critics on all rollouts, after the one of the policy."""


class ActorCritic(OnPolicyLearner):
    """Climbs the advantages of what was done, by one step.

    They are not scaled to a deviation of one: a round in which nothing happened would be all noise, and weigh as much
    as any other. Adam's own scale is one of many rounds.
    """

    settings: ActorCriticSettings

    def learn(
        self,
        policy: Policy,
        state: OnPolicyState,
        taken: Transition,
        objective: Objective,
        key: Array,
        leads: Array | None = None,
    ) -> tuple[Policy, OnPolicyState, Metrics]:
        """One gradient step of the policy on all rollouts, and some of the critics."""
        state, judged = self._judged(policy, state, taken, objective.discount, leads)

        def loss(acting: Policy, here: Gaussian) -> tuple[Array, Array]:
            gain = jnp.mean(judged.advantage * self._density(here, judged.raw))
            return self._held(here) - gain, jnp.mean(here.log_deviation)

        acting, state, noise, multiplier = self._climbed(policy, state, judged.observation, loss, objective.trust, key)
        step = lambda state, _: self._valued(policy, state, judged)  # noqa: E731
        state, metrics = jax.lax.scan(step, state, length=self.settings.critic_steps)
        first = jax.tree.map(lambda leaf: leaf[0], metrics)
        return acting, state, first | {"log_deviation": noise, "multiplier": multiplier}
