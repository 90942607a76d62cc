"""Conservative Dual Policy Optimization: a referential update, then a conservative one inside a trust region."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from jax import Array

from cdpo.errors import UserError, check_choices
from cdpo.noise import fold
from cdpo.tabular.agents.base import Belief, Plan, PosteriorAgent
from cdpo.tabular.planning import Model, visitation
from cdpo.tabular.shared import FEWEST_JUDGES, judged
from cdpo.tabular.solve import Aggregation, solve
from cdpo.tabular.trust import Trust


@dataclass(frozen=True)
class CDPO(PosteriorAgent):
    """Optimises on a steady reference model, then on many sampled models without straying far from the first."""

    name: ClassVar[str] = "cdpo"

    models: int = 20
    """How many models are drawn from the posterior for the conservative update."""
    eta: float = 0.2
    """Bound of the trust region, a total variation in [0, 1]."""
    constraint: Literal["occupancy", "occupancy-weighted", "occupancy-current", "pointwise", "previous", "none"] = (
        "occupancy"
    )
    """What eta bounds: the expected distance to q under q's visitation from the start (occupancy); the same with
    the objective weighted by that visitation, or with visitation from the current state; the distance at every
    state (pointwise); the same around the policy of the block before (previous); or nothing."""
    reference: Literal["mean", "least-squares", "sample"] = "mean"
    """The reference model: posterior mean, least squares by counts, or a posterior sample."""
    update: Literal["dual", "referential", "conservative"] = "dual"
    """Both updates; the referential one only, pi_t = q_t; or the conservative one only, q_t = pi_{t-1}."""
    value: Literal["optimal", "expected"] = "optimal"
    """What the conservative update maximises: the mean of each model's own optimal Q, in each state by itself, as the
    paper's appendix has it; or the mean value of one policy over the models, its main equation."""
    judges: int = 0
    """Fresh models that judge the conservative update: it goes back towards q until they are sure that it gains."""
    aggregation: Literal["mean", "quantile"] = "mean"
    """How the values under the sampled models become one."""
    quantile: float = 0.9
    """Level of the quantile."""

    def __post_init__(self) -> None:
        """Reject settings outside their range."""
        check_choices(self)
        if not 0 <= self.eta <= 1:
            raise UserError(f"eta bounds a total variation and must be in [0, 1], not {self.eta:g}")
        if self.models < 1:
            raise UserError(f"the number of sampled models must be at least 1, not {self.models}")
        if self.judges and self.judges < FEWEST_JUDGES:
            raise UserError(f"judges must be 0, for none, or at least {FEWEST_JUDGES}, not {self.judges}")
        if self.judges and self.update == "referential":
            raise UserError("update referential makes no conservative update; leave judges out")
        if self.value == "expected" and self.aggregation != "mean":
            raise UserError("value expected is a mean over the models; leave aggregation quantile to value optimal")
        if self.value == "expected" and self.constraint == "occupancy-weighted":
            raise UserError("value expected has no weights of states; leave occupancy-weighted to value optimal")
        if not 0 <= self.quantile <= 1:
            raise UserError(f"quantile must be in [0, 1], not {self.quantile:g}")

    def improve(self, last: Plan, belief: Belief, key: Array) -> Plan:
        """q = solve(pi, {f_ref}, V); pi = solve(q, {f_1..f_K}, mean V within eta of q)."""
        posterior, known, _ = belief
        reference = self._reference(belief, fold(key, 0))
        q = last.policy if self.update == "conservative" else solve(last.policy, reference, known)
        if self.update == "referential":
            return Plan(q, q, reference)
        centre = last.policy if self.constraint == "previous" else q
        models = posterior.sample_set(known, fold(key, 1), self.models)
        aggregation = Aggregation(self.aggregation, self.quantile)
        trust = self._trust(centre, reference, belief)
        policy = solve(centre, models, known, value=self.value, aggregation=aggregation, trust=trust)
        if self.judges:
            fresh = posterior.sample_set(known, fold(key, 2), self.judges)
            policy = judged(policy, centre, fresh, known)
            models = jax.tree.map(lambda *parts: jnp.concatenate(parts), models, fresh)
        # Comparisons with what is no number are false, and would quietly end at the centre.
        whole = jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in models]))
        policy = jnp.where(whole, policy, jnp.nan)
        return Plan(policy, q, reference)

    def _reference(self, belief: Belief, key: Array) -> Model:
        posterior, known, _ = belief
        if self.reference == "mean":
            return posterior.mean(known)
        if self.reference == "least-squares":
            return posterior.least_squares(known)
        return posterior.sample(known, key)

    def _trust(self, centre: Array, reference: Model, belief: Belief) -> Trust | None:
        if self.constraint == "none":
            return None
        if self.constraint in ("pointwise", "previous"):
            return Trust(self.eta, cost=None)
        start = belief.known.start
        if self.constraint == "occupancy-current":
            start = jax.nn.one_hot(belief.state, start.shape[0])
        occupancy = visitation(reference, centre, start, belief.known.discount)
        weight = occupancy if self.constraint == "occupancy-weighted" else None
        return Trust(self.eta, cost=occupancy, weight=weight)
