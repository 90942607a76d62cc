"""The improvement ledger: both sides of the paper's improvement theorem, exactly, at every update.

With pi = pi_t, q = q_t, f the reference model and f* the truth, the theorem's proof goes in two steps:

    J(q) - J(pi_{t-1}) >= Delta - error(q) - error(pi_{t-1})      model error on what each policy visits
    J(pi) - J(q)       >= -2 TV iota / (1 - gamma)                 the trust region

The first is printed in the paper as an equality, with rewards known and values spanning at most one. Rewards are
learned here, so the exact inequality carries their error, and the span of V under the reference model as a factor:

    error(p) = E_{rho_p}[ gamma span(V_p^f) / 2 |f - f*|_1 + |r_f - r*| ] / (1 - gamma).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cdpo.tabular.agents.base import Plan
from cdpo.tabular.mdp import FiniteMDP
from cdpo.tabular.planning import Known, Model, action_values, evaluate, policy_iteration, visitation


class Entry(NamedTuple):
    """One update of one seed. Values are from the start distribution."""

    improvement: Array  # J(pi_t) - J(pi_{t-1}), in truth
    delta: Array  # V_{q_t} - V_{pi_{t-1}} under the reference model, as in the theorem's proof
    delta_q: Array  # V_{q_t} - V_{q_{t-1}} under the reference model, as in its statement
    error_q: Array  # model error on what q_t visits in truth
    error_pi: Array  # model error on what pi_{t-1} visits in truth
    kappa: Array  # {E_{rho_pi}[(d rho_q / d rho_pi)^2]}^(1/2); infinite where q_t goes and pi_{t-1} does not
    shift: Array  # total variation between what q_t and what pi_{t-1} visit; where it is zero, kappa is trivial
    distance: Array  # E_{nu_q}[TV(pi_t, q_t)] in truth
    iota: Array  # max |A_{pi_t}| in truth
    slope: Array  # 2 iota / (1 - gamma): what a total variation of one may cost
    expected: Array  # E[V_{pi_t} - V_{q_t} | H], estimated by models that neither update has seen
    expected_error: Array  # standard error of that estimate
    worst: Array  # of J(pi) - J(pi_{t-1}) over all policies pi: no update could have improved by less

    @property
    def trust(self) -> Array:
        """What leaving q_t may have cost, with the distance that was really gone."""
        return self.distance * self.slope

    @property
    def bound(self) -> Array:
        """The right side with every term exact: improvement >= bound always."""
        return self.delta - self.error_q - self.error_pi - self.trust

    def theorem(self, eta: float) -> Array:
        """The theorem's right side: kappa for the error on what q_t visits, the bound eta for the distance.

        Unlike `bound` it need not hold: its change of measure is not sound in general, and eta bounds the distance
        under the model's visitation, not the true one. The docs tell of both.
        """
        return self.delta - (1 + self.kappa) * self.error_pi - eta * self.slope


def ledger_entry(mdp: FiniteMDP, last: Plan, plan: Plan, model: Model, fresh: Model) -> Entry:
    """Compare a plan and the model it was made on with the plan before it, in the true MDP.

    `fresh` are models (leading axis) drawn from the posterior that the plan was made on, of which it knew nothing.
    """
    known, truth, gamma = Known.of(mdp), Model.true(mdp), mdp.discount

    def occupancy(policy: Array) -> Array:
        return visitation(truth, policy, known.start, gamma)[:, None] * policy

    def model_error(policy: Array, rho: Array) -> Array:
        value = evaluate(model, policy, gamma)
        # Terminal states keep value zero, and lost mass is mass on them.
        value = jnp.where(known.terminal, 0.0, value)
        span = jnp.max(value) - jnp.min(value)
        gone = jnp.abs(jnp.sum(model.transition - truth.transition, axis=-1))
        distance = jnp.sum(jnp.abs(model.transition - truth.transition), axis=-1) + gone
        reward = jnp.abs(model.reward - truth.reward)
        return jnp.sum(rho * (gamma * span / 2 * distance + reward)) / (1 - gamma)

    def value(f: Model, policy: Array) -> Array:
        return known.start @ evaluate(f, policy, gamma)

    v = evaluate(truth, plan.policy, gamma)
    advantage = jnp.where(known.allowed, action_values(truth, v, gamma) - v[:, None], 0.0)
    iota = jnp.max(jnp.abs(jnp.where(known.terminal[:, None], 0.0, advantage)))
    gained = jax.vmap(lambda f: value(f, plan.policy) - value(f, plan.reference))(fresh)
    hostile, _ = policy_iteration(truth._replace(reward=-truth.reward), known, plan.policy)
    before = value(truth, last.policy)
    rho_q, rho_pi = occupancy(plan.reference), occupancy(last.policy)
    ratio = jnp.where(rho_q > 0, rho_q * (rho_q / rho_pi), 0.0)
    distance = jnp.sum(jnp.sum(rho_q, axis=-1) * 0.5 * jnp.sum(jnp.abs(plan.policy - plan.reference), axis=-1))
    return Entry(
        improvement=known.start @ v - before,
        delta=value(model, plan.reference) - value(model, last.policy),
        delta_q=value(model, plan.reference) - value(model, last.reference),
        error_q=model_error(plan.reference, rho_q),
        error_pi=model_error(last.policy, rho_pi),
        kappa=jnp.sqrt(jnp.sum(ratio)),
        shift=0.5 * jnp.sum(jnp.abs(rho_q - rho_pi)),
        distance=distance,
        iota=iota,
        slope=2 * iota / (1 - gamma),
        expected=jnp.mean(gained),
        expected_error=jnp.std(gained, ddof=1) / jnp.sqrt(gained.shape[0]),
        worst=value(truth, hostile) - before,
    )
