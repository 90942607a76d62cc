"""The uncertainty Bellman equation (O'Donoghue et al., 2018)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
from jax import Array

from cdpo.errors import UserError
from cdpo.tabular.agents.base import Belief, Plan, PosteriorAgent, probability_of_best
from cdpo.tabular.planning import Known, Model, action_values, evaluate
from cdpo.tabular.posterior import Posterior
from cdpo.tabular.solve import solve


@dataclass(frozen=True)
class UBE(PosteriorAgent):
    """Acts on Q of the posterior mean plus Gaussian noise whose variance solves a Bellman equation of its own."""

    name: ClassVar[str] = "ube"

    zeta: float = 0.1
    """Scales the noise's standard deviation."""

    def __post_init__(self) -> None:
        """Reject settings outside their range."""
        if not self.zeta >= 0:
            raise UserError(f"zeta must not be negative, not {self.zeta:g}")

    def improve(self, last: Plan, belief: Belief, key: Array) -> Plan:
        """Thompson actions on N(Q, zeta^2 u), u = nu + gamma^2 P u."""
        posterior, known, _ = belief
        total = jnp.sum(posterior.concentration, axis=-1)
        # sum_s' Var[P]/E[P] = (S - 1)/(total + 1) for a Dirichlet.
        dynamics = largest_squared_value(posterior, known) * (total.shape[0] - 1) / (total + 1)
        rewards = expected_mean_variance(posterior) + dirichlet_variance(posterior, posterior.rewards.mean)
        return act_on_variance(last, belief, lambda _: rewards + dynamics, self.zeta)


def largest_squared_value(posterior: Posterior, known: Known) -> Array:
    """Q_max^2, a bound on E[V(s)^2] under the posterior for every policy and state of a layered problem.

    The paper assumes |V| <= Q_max for certain, which no posterior of unbounded rewards can promise. Its proof takes no
    more than this second moment, and assumes layers, that no state is met twice: then V is a discounted sum of mean
    rewards that are independent of how one came to them, and its root mean square is at most the largest of theirs,
    over 1 - gamma. Where states are met again it may be exceeded, as the paper's own bound on the variance may.
    """
    rewards = posterior.rewards
    squares = jnp.sum(posterior.transition * (rewards.mean**2 + rewards.mean_variance), axis=-1)
    payable = known.allowed & ~known.terminal[:, None]
    return jnp.max(jnp.where(payable, squares, 0.0)) / (1 - known.discount) ** 2


def expected_mean_variance(posterior: Posterior) -> Array:
    """E[sum_s' P Var(mu)], [S, A]: how unsure the mean rewards are."""
    return jnp.sum(posterior.transition * posterior.rewards.mean_variance, axis=-1)


def dirichlet_variance(posterior: Posterior, values: Array) -> Array:
    """Var[sum_s' P(s') v(s')] for Dirichlet P in closed form; values [S, A, S] or [S] -> [S, A]."""
    mean = posterior.transition
    centre = jnp.sum(mean * values, axis=-1, keepdims=True)
    total = jnp.sum(posterior.concentration, axis=-1)
    return jnp.sum(mean * (values - centre) ** 2, axis=-1) / (total + 1)


def act_on_variance(last: Plan, belief: Belief, local: Callable[[Array], Array], zeta: float) -> Plan:
    """Propagate `local(V)` [S, A] as a variance of Q through the posterior-mean model, and Thompson-sample."""
    posterior, known, _ = belief
    model = posterior.mean(known)
    greedy = solve(last.reference, model, known)
    value = evaluate(model, greedy, known.discount)
    uncertain = Model(model.transition, local(value))
    squared = known.discount**2
    variance = action_values(uncertain, evaluate(uncertain, greedy, squared), squared)
    q = action_values(model, value, known.discount)
    deviation = zeta * jnp.sqrt(jnp.maximum(variance, 0.0))
    return Plan(probability_of_best(q, deviation, known.allowed), greedy, model)
