"""Stochastic lower bound optimisation (Luo et al. 2018): model and policy take turns."""

from dataclasses import dataclass

from cdpo.agents.model_based import Bench, Exploration, Plan
from cdpo.dynamics.models import reference_model
from cdpo.solvers.base import Trust
from cdpo.solvers.policy import Policy


@dataclass(frozen=True)
class SLBO(Exploration):
    """Optimises by TRPO on the least-squares model, and goes on fitting that in between."""

    name = part = "slbo"
    uses = ("loop", "ensemble", "dyna", "trpo")

    turns: int = 5
    """Times in an iteration that the model is fitted, and the policy optimised on it."""

    def improve(self, policy: Policy, bench: Bench) -> Plan:
        """f = fit(f), pi = solve(pi, {f}, V), in turns; the first fit was made before."""
        for turn in range(self.turns):
            policy = bench.fit(policy) if turn else policy
            policy = bench.solve(policy, reference_model(bench.belief, self.models), Trust.off(policy), as_="pi")
        return Plan(policy, policy, reference_model(bench.belief, 1))
