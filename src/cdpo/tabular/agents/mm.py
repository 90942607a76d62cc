"""Moment matching across the Bellman equation (Markou and Rasmussen, 2019)."""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
from jax import Array

from cdpo.errors import UserError
from cdpo.tabular.agents.base import Belief, Plan, PosteriorAgent
from cdpo.tabular.agents.ube import act_on_variance, dirichlet_variance, expected_mean_variance


@dataclass(frozen=True)
class MM(PosteriorAgent):
    """Acts on Q of the posterior mean plus Gaussian noise with the variance that matches the posterior's moments."""

    name: ClassVar[str] = "mm"

    zeta: float = 1.0
    """Scales the noise's standard deviation."""

    def __post_init__(self) -> None:
        """Reject settings outside their range."""
        if not self.zeta >= 0:
            raise UserError(f"zeta must not be negative, not {self.zeta:g}")

    def improve(self, last: Plan, belief: Belief, key: Array) -> Plan:
        """Thompson actions on N(Q, zeta^2 v), v = local + gamma^2 P v."""
        posterior, known, _ = belief

        def local(value: Array) -> Array:
            # Var[sum P mu] + 2 gamma Cov(sum P mu, sum P V) + gamma^2 Var[sum P V] = Var[sum P (mu + gamma V)].
            ahead = known.discount * jnp.where(known.terminal, 0.0, value)
            target = posterior.rewards.mean + ahead
            return expected_mean_variance(posterior) + dirichlet_variance(posterior, target)

        return act_on_variance(last, belief, local, self.zeta)
