"""Conservative Dual Policy Optimization: a referential update, then a conservative one inside a trust region."""

from dataclasses import dataclass
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from cdpo.agents.model_based import Bench, Exploration, Plan
from cdpo.dynamics.ensemble import Ensemble
from cdpo.dynamics.models import Belief, ModelSet, reference_model, sampled_models
from cdpo.errors import UserError
from cdpo.solvers.base import Trust
from cdpo.solvers.policy import Policy

_KEPT = 0.8  # of the running average at each iteration


@dataclass(frozen=True)
class CDPO(Exploration):
    """Optimises on a steady reference model, then on many sampled models without straying far from the first."""

    name = part = "cdpo"

    kl: float = 0.1
    """Bound of the trust region, E KL(pi || q); where a state's KL is large, less of it counts."""
    schedule: Literal["constant", "sqrt", "linear", "none"] = "constant"
    """The bound at iteration t: kl, kl / sqrt(t), kl / t, or none at all."""
    reference: Literal["least-squares", "mean", "average"] = "least-squares"
    """The reference model: the least-squares member, the mean of the heads, or a running average of the first."""
    sampling: Literal["subset", "mix"] = "subset"
    """How models are sampled at each iteration: some of the heads, or random mixes of all of them."""
    update: Literal["dual", "referential", "conservative"] = "dual"
    """Both updates; the referential one only, pi_t = q_t; or the conservative one only, q_t = pi_{t-1}."""

    def __post_init__(self) -> None:
        """A bound of nothing is no bound."""
        if not self.kl > 0:
            raise UserError(f"cdpo.kl must be above 0, not {self.kl:g}; for no bound: --cdpo.schedule none")
        super().__post_init__()

    def improve(self, policy: Policy, bench: Bench) -> Plan:
        """q = solve(pi, {f_ref}, V); pi = solve(q, {f_1..f_M}, mean V within kl of q)."""
        reference, memory = self._reference(bench)
        q = policy if self.update == "conservative" else bench.solve(policy, reference, as_="q")
        if self.update == "referential":
            return Plan(q, q, reference, memory)
        models = sampled_models(bench.belief, self.models, self.sampling, bench.fold(1))
        outlook = bench.look(q, reference)
        watched, checked, _ = outlook.states
        trust = Trust.around(q, watched, checked, self._bound(bench.iteration), active=self.schedule != "none")
        policy = bench.solve(q, models, trust, as_="pi")
        return Plan(policy, q, reference, memory, trust, outlook, models)

    def begin(self, belief: Belief) -> Any:
        """The running average, where there is one."""
        return _first(belief.ensemble) if self.reference == "average" else ()

    def _reference(self, bench: Bench) -> tuple[ModelSet, Any]:
        heads = bench.belief.heads if self.sampling == "mix" else 1
        if self.reference == "mean":
            return reference_model(bench.belief, self.models, heads, mean=True), ()
        if self.reference == "average":
            now = _first(bench.belief.ensemble)
            last = bench.memory.renormalised(now.inputs, now.targets)
            kept = jnp.where(bench.iteration > 1, _KEPT, 0.0)
            net = jax.tree.map(lambda old, new: kept * old + (1 - kept) * new, last.net, now.net)
            return reference_model(bench.belief, self.models, heads, net=net), eqx.tree_at(lambda e: e.net, now, net)
        return reference_model(bench.belief, self.models, heads), ()

    def _bound(self, iteration: Array) -> Array:
        power = {"constant": 0.0, "none": 0.0, "sqrt": 0.5, "linear": 1.0}[self.schedule]
        return self.kl / iteration.astype(jnp.float32) ** power


def _first(ensemble: Ensemble) -> Ensemble:
    """The reference alone."""
    return eqx.tree_at(lambda e: e.net, ensemble, ensemble.net.member(0))
