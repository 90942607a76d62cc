"""What agents without a model share: a learner on real transitions."""

from typing import Any

import equinox as eqx
from jax import Array

from cdpo.agents.base import Agent
from cdpo.dynamics.replay import Replay
from cdpo.solvers.base import Metrics, Objective, Trust
from cdpo.solvers.policy import Policy
from cdpo.tasks import Task


class ModelFree(Agent):
    """A learner, which Dyna uses as well, on what really happened. Minds have its state as `learner`."""

    task: Task = eqx.field(static=True)
    discount: float = eqx.field(static=True)

    def judge(self, mind: Any, replay: Replay, count: Array) -> Metrics:
        """Nothing is believed."""
        return {}

    def parts(self, mind: Any) -> dict[str, Any]:
        """From the critics on."""
        return {"learner's state": mind.learner, "policy": mind.policy}

    def _objective(self, policy: Policy) -> Objective:
        """The policy's value, with no trust region."""
        return Objective(self.discount, Trust.off(policy))
