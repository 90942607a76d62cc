"""Optimism by hallucinated control (Curi et al. 2020): the policy also chooses where in the spread the world falls."""

from dataclasses import dataclass

from cdpo.agents.model_based import Bench, Exploration, Plan
from cdpo.dynamics.models import Belief, ModelSet, optimistic_model, reference_model
from cdpo.solvers.policy import Policy
from cdpo.tasks import Task


@dataclass(frozen=True)
class HUCRL(Exploration, zero=("beta",)):
    """Optimises on the most favourable of the plausible models."""

    name = part = "hucrl"
    plans_on = "optimistic"

    beta: float = 1.0
    """Reach of the choice, in calibrated standard deviations."""

    def extra(self, task: Task) -> int:
        """One choice for each dimension that the model predicts."""
        return task.observations + (task.reward is None)

    def optimistic(self, belief: Belief) -> ModelSet | None:
        """The model that is planned on."""
        return optimistic_model(belief, 1, self.beta)

    def improve(self, policy: Policy, bench: Bench) -> Plan:
        """pi = solve(pi+, {f_LS + beta sigma u}, V)."""
        policy = bench.solve(policy, optimistic_model(bench.belief, self.models, self.beta), as_="pi")
        return Plan(policy, policy, reference_model(bench.belief, 1))
