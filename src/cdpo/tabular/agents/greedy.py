"""Greedy model exploitation: pi_t = argmax_pi V of the posterior-mean model."""

from typing import ClassVar

from jax import Array

from cdpo.tabular.agents.base import Belief, Plan, PosteriorAgent
from cdpo.tabular.solve import solve


class Greedy(PosteriorAgent):
    """Plans on the posterior mean as if it were true."""

    name: ClassVar[str] = "greedy"

    def improve(self, last: Plan, belief: Belief, key: Array) -> Plan:
        """pi = solve(pi, {f_mean}, V)."""
        model = belief.posterior.mean(belief.known)
        policy = solve(last.policy, model, belief.known)
        return Plan(policy, policy, model)
