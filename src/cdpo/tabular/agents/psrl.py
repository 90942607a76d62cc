"""Posterior sampling for reinforcement learning (Osband et al., 2013)."""

from typing import ClassVar

from jax import Array

from cdpo.tabular.agents.base import Belief, Plan, PosteriorAgent
from cdpo.tabular.solve import solve


class PSRL(PosteriorAgent):
    """Plans on one model drawn from the posterior, once per block."""

    name: ClassVar[str] = "psrl"

    def improve(self, last: Plan, belief: Belief, key: Array) -> Plan:
        """pi = solve(pi, {f_t}, V), f_t drawn from the posterior."""
        model = belief.posterior.sample(belief.known, key)
        policy = solve(last.policy, model, belief.known)
        return Plan(policy, policy, model)
