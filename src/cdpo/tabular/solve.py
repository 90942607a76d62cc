"""`solve(policy, models, objective)`: the paper's MBPO(pi, {f}, J) by policy iteration.

Every framework of the paper is a choice of models and of updates with this one function; see `cdpo.tabular.agents`.
"""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array

from cdpo.tabular.planning import Known, Model, policy_iteration
from cdpo.tabular.shared import best_shared_policy
from cdpo.tabular.trust import Trust, constrained_argmax


@dataclass(frozen=True)
class Aggregation:
    """How the values under several models become one value."""

    kind: Literal["mean", "quantile"] = "mean"
    level: float = 0.9

    def __call__(self, values: Array) -> Array:
        """Reduce the leading axis."""
        if self.kind == "mean":
            return jnp.mean(values, axis=0)
        return jnp.quantile(values, self.level, axis=0)


def solve(
    policy: Array,
    models: Model,
    known: Known,
    *,
    value: Literal["optimal", "expected"] = "optimal",
    aggregation: Aggregation = Aggregation(),
    trust: Trust | None = None,
) -> Array:
    """The policy [S, A] that is best on a model, or on a set of models (leading axis), within the trust region.

    Value "expected" is the paper's main equation: the one policy whose mean value over the models is largest, as far as
    ascent finds it. Value "optimal" is its appendix: every model's own Q*, aggregated, decides in each state by itself.
    On a single model, without a trust region, both have the value of policy iteration from the start.
    """
    if models.reward.ndim == 2:
        models = jax.tree.map(lambda x: x[None], models)
    own = jax.vmap(lambda model: policy_iteration(model, known, policy)[1])(models)
    hopeful = constrained_argmax(aggregation(own), policy, known, trust)
    if value == "optimal":
        return hopeful
    if aggregation.kind != "mean":
        raise ValueError("an expected value is a mean over the models")
    return best_shared_policy(policy, hopeful[None], models, known, trust)
