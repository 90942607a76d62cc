"""Posterior sampling: one model is drawn and taken for the truth."""

from dataclasses import dataclass

from cdpo.agents.model_based import Bench, Exploration, Plan
from cdpo.dynamics.models import reference_model, sampled_models
from cdpo.solvers.policy import Policy


@dataclass(frozen=True)
class PSRL(Exploration):
    """Optimises on one head, drawn anew in each iteration."""

    name = part = "psrl"
    plans_on = "sample"

    def improve(self, policy: Policy, bench: Bench) -> Plan:
        """pi = solve(pi, {f_t}, V), f_t drawn from the posterior."""
        drawn = sampled_models(bench.belief, 1, "subset", bench.fold(1))
        policy = bench.solve(policy, drawn.repeated(self.models), as_="pi")
        return Plan(policy, policy, reference_model(bench.belief, 1))
