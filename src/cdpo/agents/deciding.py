"""Planning at decision time: before every action a search, from what is left of the last plan."""

import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cdpo.dynamics.models import ModelSet
from cdpo.errors import UserError
from cdpo.solvers.base import Solver
from cdpo.solvers.mpc import MPCSettings
from cdpo.solvers.plans import Planning
from cdpo.solvers.policy import Policy


class Planner:
    """Acts by plans that begin at what a policy proposes, and are judged on a set of models.

    It remembers the last plan: call `begin` before every episode. The same seed, episode and observations lead to the
    same actions.
    """

    def __init__(
        self,
        policy: Policy,
        models: ModelSet,
        discount: float,
        settings: MPCSettings,
        *,
        solver: Solver,
        state: Any,
        seed: int = 0,
    ) -> None:
        """What follows a plan is worth what the `solver` learned of it, if anything; `state` is the solver's."""
        self.task = policy.task
        self._decide = partial(_decided, solver, settings, policy, models, state, discount)
        self._nothing = _planning(solver, settings, policy, models, state, discount).none(1)
        self._key = jax.random.key(seed)
        self.seconds: list[float] = []  # that each action took
        self.begin(0)
        self(np.zeros(self.task.observations))  # compiled now, and not before the first action
        self.seconds.clear()
        self.begin(0)

    def begin(self, episode: int) -> None:
        """Another episode: the last plan is forgotten."""
        self._episode, self._step, self._left = episode, 0, self._nothing

    def act(self, observation: Any) -> np.ndarray:
        """The action [m] at an observation [d], in the environment's units."""
        action = self(observation)
        if not np.isfinite(action).all():
            raise UserError(f"no plan of {self.task.name} is a finite number here; see that the observation is one")
        return self.task.unscaled(action).astype(np.float32)

    def __call__(self, observation: np.ndarray, noise: np.ndarray | None = None) -> np.ndarray:
        """The action [m] in [-1, 1]. Plans know no noise. One that is no number is not remembered."""
        seen = np.asarray(observation, np.float32)
        if seen.shape != (self.task.observations,):
            raise UserError(f"{self.task.name} has observations of {self.task.observations} numbers, not {seen.shape}")
        began = time.perf_counter()
        with jax.default_matmul_precision("float32"):
            found, left = self._decide(seen, self._left, self._key, self._episode, self._step)
        action = np.asarray(found)
        self._left = left if np.isfinite(left).all() else self._nothing
        self.seconds.append(time.perf_counter() - began)
        self._step += 1
        return action


def _planning(
    solver: Solver, settings: MPCSettings, policy: Policy, models: ModelSet, state: Any, discount: float
) -> Planning:
    return Planning(settings, policy, models, discount, partial(solver.beyond, state, policy), settings.trace)


@partial(jax.jit, static_argnums=5)
def _decided(
    solver: Solver,
    settings: MPCSettings,
    policy: Policy,
    models: ModelSet,
    state: Any,
    discount: float,
    observation: Array,
    plan: Array,
    key: Array,
    episode: Array,
    step: Array,
) -> tuple[Array, Array]:
    """The first action of the best plan found, and what is left of it."""
    planning = _planning(solver, settings, policy, models, state, discount)
    key = jax.random.fold_in(jax.random.fold_in(key, episode), step)
    find, roll = jax.random.split(key)
    found = planning.better(observation[None], plan, find)
    course = planning.course(observation[None], found.best[None], roll)
    # The first of its steps is the same on all models. The environment gets the first parts of an action.
    return jnp.tanh(course.mean[0, 0, 0, 0])[: policy.task.actions], planning.left(found.best)
