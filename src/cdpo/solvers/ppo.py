"""Proximal policy optimisation (Schulman et al. 2017)."""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
import optax
from jax import Array

from cdpo.solvers.base import Metrics, Objective
from cdpo.solvers.onpolicy import Judged, OnPolicyLearner, OnPolicySettings, OnPolicyState
from cdpo.solvers.policy import Gaussian, Policy


@dataclass(frozen=True)
class PPOSettings(OnPolicySettings):
    """The learner ppo."""

    part: ClassVar[str] = "ppo"

    epochs: int = 4
    """Times that rollouts are gone through before there are new ones."""
    minibatches: int = 8
    """Parts in which they are gone through, a gradient step on each."""
    clip: float = 0.2
    """How far the ratio of two densities of an action may leave one before its gain no longer counts."""
    gradient: float | None = None
    """Largest norm of a gradient, of policy or critics; a longer one is shortened. If not given, none is."""


class PPO(OnPolicyLearner):
    """Climbs the advantages of what was done, no further than the ratio's clip, in several passes."""

    settings: PPOSettings

    @property
    def _network(self) -> optax.GradientTransformation:
        longest = self.settings.gradient
        return (
            super()._network if longest is None else optax.chain(optax.clip_by_global_norm(longest), super()._network)
        )

    def _improved(
        self, policy: Policy, state: OnPolicyState, judged: Judged, objective: Objective, key: Array
    ) -> tuple[Policy, OnPolicyState, Metrics]:
        """Gradient steps of critics and policy on all minibatches of all epochs; metrics are means over them."""
        clip = self.settings.clip

        def loss(part: Judged, here: Gaussian) -> tuple[Array, Metrics]:
            ratio = jnp.exp(self._density(here, part.raw) - part.density)
            near = jnp.clip(ratio, 1 - clip, 1 + clip)
            gain = jnp.mean(jnp.minimum(ratio * part.advantage, near * part.advantage))
            return -gain, {"clipped": jnp.mean(ratio != near)}

        return self._passed(policy, state, judged, objective, key, loss)
