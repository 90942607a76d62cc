"""A plain actor-critic: REINFORCE (Williams 1992) with learned values as its baseline."""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
from jax import Array

from cdpo.solvers.base import Metrics, Objective
from cdpo.solvers.onpolicy import Judged, OnPolicyLearner, OnPolicySettings, OnPolicyState
from cdpo.solvers.policy import Gaussian, Policy


@dataclass(frozen=True)
class ActorCriticSettings(OnPolicySettings):
    """The learner actor-critic."""

    part: ClassVar[str] = "actor_critic"

    minibatches: int = 32
    """Parts in which rollouts are gone through, a gradient step on each."""
    restraint: float = 0.05
    """Weight of the squared means of actions before squashing. Without it they were seen to run away on what little
    happens at first, to where squashing leaves no gradient; PPO's clip is another remedy."""

    @property
    def epochs(self) -> int:
        """Times that rollouts are gone through: what was done is what this policy does only once."""
        return 1


class ActorCritic(OnPolicyLearner):
    """Climbs the advantages of what was done, in one pass."""

    settings: ActorCriticSettings

    def _improved(
        self, policy: Policy, state: OnPolicyState, judged: Judged, objective: Objective, key: Array
    ) -> tuple[Policy, OnPolicyState, Metrics]:
        """Gradient steps of critics and policy on all minibatches; metrics are means over them."""

        def loss(part: Judged, here: Gaussian) -> tuple[Array, Metrics]:
            # For the policy that acted this is the gradient of the log-density. For the one it has become since, what
            # turned out badly is pushed away no further than until it is unlikely.
            ratio = jnp.exp(self._density(here, part.raw) - part.density)
            gain = jnp.mean(ratio * part.advantage)
            return self.settings.restraint * jnp.mean(here.mean**2) - gain, {}

        return self._passed(policy, state, judged, objective, key, loss)
