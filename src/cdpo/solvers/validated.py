"""A solver in laps, each of which must make the policy better on most of the models (Kurutach et al. 2018)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cdpo.dynamics.models import ModelSet
from cdpo.solvers.base import Metrics, Objective, Size, Solver, Starts
from cdpo.solvers.policy import Policy
from cdpo.solvers.rollouts import model_values


class Validated(NamedTuple):
    """Goes on until the policy has not improved for some laps, and gives back the best."""

    solver: Solver
    share: float  # of the models on which a policy must be better than the best so far
    patience: int  # laps without such a policy after which it ends
    laps: int  # after which it ends in any case

    @property
    def settings(self) -> Any:
        """Of the solver itself."""
        return self.solver.settings

    def begin(self, policy: Policy, models: int, key: Array) -> Any:
        """The solver's state."""
        return self.solver.begin(policy, models, key)

    def renormalised(self, state: Any, old: Policy, new: Policy, size: Size) -> Any:
        """The same state after the policy's normaliser changed and what is paid is of another `size`."""
        return self.solver.renormalised(state, old, new, size)

    def beyond(self, state: Any, policy: Policy, states: Array) -> Array | None:
        """What the solver says of states."""
        return self.solver.beyond(state, policy, states)

    def __call__(
        self, policy: Policy, models: ModelSet, objective: Objective, *, starts: Starts, state: Any, key: Array
    ) -> tuple[Policy, Any, Metrics]:
        """Solve, validate, and again."""
        judged, drawn = jax.random.split(key)

        def validated(policy: Policy) -> Array:
            """Always with the same noise, so that policies alone make the difference."""
            return model_values(policy, models, starts, judged, objective.discount)

        def solved(policy: Policy, state: Any, number: Array) -> tuple[Policy, Any, Metrics]:
            return self.solver(
                policy, models, objective, starts=starts, state=state, key=jax.random.fold_in(drawn, number)
            )

        def going(course: _Course) -> Array:
            return (course.laps < self.laps) & (course.stale < self.patience)

        def lap(course: _Course) -> _Course:
            policy, state, metrics = solved(course.policy, course.state, course.laps)
            now = validated(policy)
            improved = jnp.mean(now > course.values)
            better = improved >= self.share
            best, known = jax.tree.map(
                lambda new, old: jnp.where(better, new, old), (policy, now), (course.best, course.values)
            )
            stale = jnp.where(better, 0, course.stale + 1)
            return _Course(policy, state, best, known, stale, course.laps + 1, metrics | {"improved": improved})

        nothing = jnp.zeros((), jnp.int32)
        shapes = jax.eval_shape(lambda: solved(policy, state, nothing)[2])
        metrics = {name: jnp.zeros(leaf.shape, leaf.dtype) for name, leaf in shapes.items()}
        metrics["improved"] = jnp.zeros(())
        start = _Course(policy, state, policy, validated(policy), nothing, nothing, metrics)
        end = jax.lax.while_loop(going, lap, start)
        return end.best, end.state, end.metrics | {"laps": end.laps}


class _Course(NamedTuple):
    """Laps under way."""

    policy: Policy
    state: Any
    best: Policy
    values: Array  # [M], of the best
    stale: Array  # laps since then
    laps: Array
    metrics: Metrics
