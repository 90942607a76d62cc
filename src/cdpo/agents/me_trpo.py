"""Model-ensemble TRPO (Kurutach et al. 2018): until the policy no longer improves on most of the models."""

from dataclasses import dataclass

import jax.numpy as jnp

from cdpo.agents.model_based import Bench, Exploration, Kit, Plan
from cdpo.dynamics.models import member_models, reference_model
from cdpo.solvers.base import Solver, Trust
from cdpo.solvers.policy import Policy
from cdpo.solvers.validated import Validated


@dataclass(frozen=True)
class METRPO(Exploration, shares=("share",)):
    """Optimises by TRPO on rollouts that have a head drawn for each step, and is validated on every head."""

    name = "me-trpo"
    part = "me_trpo"
    uses = ("loop", "ensemble", "dyna", "trpo")
    plans_on = "sample"

    models: int = 5
    """Heads that are planned on."""
    share: float = 0.7
    """Share of them on which a policy must do better than the best so far, when dyna.rounds more steps were taken."""
    patience: int = 5
    """Validations without a better policy after which an iteration ends, with the best."""
    laps: int = 20
    """Validations after which it ends in any case."""

    def check(self, kit: Kit) -> None:
        """No more models than heads."""
        self.check_heads(kit)

    def solver(self, solver: Solver) -> Solver:
        """In laps, each of them validated."""
        return Validated(solver, self.share, self.patience, self.laps)

    def improve(self, policy: Policy, bench: Bench) -> Plan:
        """pi = solve(pi, {f_1..f_K}, V), until V no longer rises on most of them."""
        policy = bench.solve(
            policy, member_models(bench.belief, 1 + jnp.arange(self.models)), Trust.off(policy), as_="pi"
        )
        return Plan(policy, policy, reference_model(bench.belief, 1))
