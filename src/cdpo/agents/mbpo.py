"""Model-based policy optimisation (Janner et al. 2019): short rollouts under the models that did best."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from cdpo.agents.model_based import Bench, Exploration, Kit, Plan
from cdpo.dynamics.ensemble import Ensemble
from cdpo.dynamics.models import member_models, reference_model
from cdpo.errors import UserError
from cdpo.solvers.base import Trust
from cdpo.solvers.policy import Policy


@dataclass(frozen=True)
class MBPO(Exploration):
    """Optimises by SAC on short rollouts from visited states, each step under an elite drawn at random."""

    name = part = "mbpo"
    uses = ("loop", "ensemble", "dyna", "sac")
    plans_on = "sample"

    models: int = 5
    """Elites: so many of the heads, those that did best on held-out rows."""
    length: int = 1
    """Steps of a rollout at first; they grow to dyna.horizon."""
    growing: int = 20
    """Thousands of real steps after which rollouts begin to grow."""
    grown: int = 100
    """Thousands of real steps after which they have dyna.horizon steps."""

    def __post_init__(self) -> None:
        """What grows does so in some steps."""
        super().__post_init__()
        if self.grown <= self.growing:
            raise UserError(f"mbpo.grown must be above mbpo.growing, {self.growing}, not {self.grown}")

    def check(self, kit: Kit) -> None:
        """No more elites than heads, and no rollout longer than the longest."""
        self.check_heads(kit)
        horizon = kit.solver.settings.horizon
        if self.length > horizon:
            raise UserError(f"mbpo.length must not be above dyna.horizon, {horizon}, not {self.length}")

    def improve(self, policy: Policy, bench: Bench) -> Plan:
        """pi = solve(pi, {elites}, V), on rollouts of the scheduled length."""
        reach = self.scheduled(bench.lived, bench.horizon)
        models = member_models(bench.belief, elites(bench.belief.ensemble, self.models), reach)
        policy = bench.solve(policy, models, Trust.off(policy), as_="pi")
        bench.metrics["rollout_length"] = reach
        return Plan(policy, policy, reference_model(bench.belief, 1))

    def scheduled(self, lived: Array, longest: int) -> Array:
        """Steps of rollouts after so many real ones: linear in between, rounded down."""
        span = 1000 * (self.grown - self.growing)
        return self.length + (longest - self.length) * jnp.clip(lived - 1000 * self.growing, 0, span) // span


def elites(ensemble: Ensemble, count: int) -> Array:
    """The numbers of the heads with the least losses on held-out rows, [count], the best first."""
    return 1 + jax.lax.top_k(-ensemble.held_out[1:], count)[1]
