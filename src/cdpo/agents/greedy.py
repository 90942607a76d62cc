"""Greedy model exploitation: the reference is taken for the truth."""

from dataclasses import dataclass

from cdpo.agents.model_based import Bench, Exploration, Plan
from cdpo.dynamics.models import reference_model
from cdpo.solvers.policy import Policy


@dataclass(frozen=True)
class Greedy(Exploration):
    """Optimises on the least-squares model alone."""

    name = part = "greedy"

    def improve(self, policy: Policy, bench: Bench) -> Plan:
        """pi = solve(pi, {f_LS}, V)."""
        reference = reference_model(bench.belief, self.models)
        policy = bench.solve(policy, reference, as_="pi")
        return Plan(policy, policy, reference)
