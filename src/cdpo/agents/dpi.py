"""Dual policy iteration (Sun et al. 2018): plans that begin at the policy, and a policy that imitates them."""

from dataclasses import dataclass

import jax.numpy as jnp

from cdpo.agents.model_based import Bench, Exploration, Plan
from cdpo.dynamics.models import reference_model
from cdpo.solvers.base import Trust
from cdpo.solvers.policy import Policy


@dataclass(frozen=True)
class DPI(Exploration):
    """Plans on the least-squares model, and imitates what was planned within a trust region about the last policy."""

    name = part = "dpi"
    uses = ("loop", "ensemble", "mpc")

    models: int = 1
    """Models that are planned on at once, with a critic each; all are the reference."""
    kl: float = 0.1
    """Bound of the trust region, E KL(pi_t || pi_{t-1})."""

    def improve(self, policy: Policy, bench: Bench) -> Plan:
        """eta = plans for {f_LS} that begin at pi; pi = imitation of eta within kl of pi."""
        reference = reference_model(bench.belief, self.models)
        outlook = bench.look(policy, reference)
        watched, checked, _ = outlook.states
        trust = Trust.around(policy, watched, checked, jnp.asarray(self.kl))
        better = bench.solve(policy, reference, trust, as_="pi")
        return Plan(better, policy, reference, trust=trust, outlook=outlook, models=reference.only(0))
