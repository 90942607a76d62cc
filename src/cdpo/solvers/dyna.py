"""Dyna: imagined rollouts on a set of models, and a model-free learner on what they bring."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cdpo.dynamics.models import ModelSet
from cdpo.dynamics.replay import Experience, draw_below
from cdpo.errors import UserError
from cdpo.solvers.base import Metrics, Objective, Starts, StartSettings, step_back
from cdpo.solvers.policy import Policy
from cdpo.solvers.rollouts import imagine
from cdpo.solvers.sac import SAC


@dataclass(frozen=True)
class DynaSettings(StartSettings, shaping=("real",)):
    """How much is imagined, where it begins, and how much is learned from it."""

    part: ClassVar[str] = "dyna"

    rounds: int = 10
    """Times that new rollouts are made in one update."""
    kept: int = 4
    """Rounds whose rollouts are learned from: those of policies long past mislead returns of several steps."""
    updates: int = 100
    """Updates of the learner after each round."""
    particles: int = 32
    """Rollouts of each model in a round."""
    horizon: int = 40
    """Steps of a rollout."""
    returns: int = 1
    """Imagined steps whose rewards are summed before a critic is asked; real transitions count one."""
    batch: int = 32
    """Transitions of each model in a batch."""
    real: float = 0.1
    """Share of real transitions among them."""

    def __post_init__(self) -> None:
        """Reject settings outside their range."""
        for name in ("rounds", "kept", "updates", "particles", "horizon", "returns", "batch"):
            if getattr(self, name) < 1:
                raise UserError(f"dyna.{name} must be at least 1, not {getattr(self, name)}")
        if not 0 <= self.real < 1:
            raise UserError(f"dyna.real must be at least 0 and below 1, not {self.real:g}")
        super().__post_init__()


class Dyna(NamedTuple):
    """The solver."""

    settings: DynaSettings
    learner: SAC

    def begin(self, policy: Policy, models: int, key: Array) -> Any:
        """The learner's state."""
        return self.learner.begin(policy, models, key)

    def renormalised(self, state: Any, old: Policy, new: Policy, reward: Array) -> Any:
        """The same state after the policy's normaliser changed and rewards are of the size `reward`."""
        return self.learner.renormalised(state, old, new, reward)

    def __call__(
        self, policy: Policy, models: ModelSet, objective: Objective, *, starts: Starts, state: Any, key: Array
    ) -> tuple[Policy, Any, Metrics]:
        """Imagine, learn, and again; at last step back into the trust region if the learner left it."""
        settings = self.settings
        state = self.learner.fresh(policy, state)
        kept = min(settings.kept, settings.rounds)
        block = settings.particles * settings.horizon
        imagined = jax.tree.map(
            lambda leaf: jnp.zeros((kept, *leaf.shape)),
            jax.eval_shape(lambda: self._imagine(policy, models, objective, starts, key)),
        )
        real_rows = round(settings.real * settings.batch)

        def batches_from(imagined: Experience, number: Array, key: Array) -> Experience:
            """All that a round learns from, [updates, K, M, B]: drawn at once, no gradient step waits for its data."""
            which, real = jax.random.split(key)
            shape = (settings.updates, self.learner.batches, models.count)
            place = draw_below(which, (*shape, settings.batch - real_rows), jnp.minimum(number + 1, kept) * block)
            rows = jnp.arange(models.count)[:, None]
            batches = jax.tree.map(lambda leaf: leaf[place // block, rows, place % block], imagined)
            if real_rows:
                step = starts.visited.draw(real, (*shape, real_rows))
                # A model's actions may have more parts than real ones (HUCRL's choice of the next state); the
                # reference is the model where that choice is zero, and real data are its data.
                missing = batches.action.shape[-1] - step.action.shape[-1]
                action = jnp.pad(step.action, ((0, 0),) * 4 + ((0, missing),))
                follows = objective.discount * (1 - step.terminated)
                drawn = Experience(step.observation, action, step.reward, step.next, follows, jnp.ones_like(follows))
                batches = jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=3), batches, drawn)
            return batches

        def round_(carry: tuple, number: Array) -> tuple[tuple, Metrics]:
            policy, state, imagined = carry
            fresh, pick, learn = jax.random.split(jax.random.fold_in(key, number), 3)
            new = self._imagine(policy, models, objective, starts, fresh)
            imagined = jax.tree.map(lambda all_, one: all_.at[number % kept].set(one), imagined, new)

            def update(carry: tuple[Policy, Any], one: tuple[Experience, Array]) -> tuple[tuple[Policy, Any], Metrics]:
                batches, key = one
                policy, state, metrics = self.learner.update(*carry, batches, objective, key)
                return (policy, state), metrics

            data = batches_from(imagined, number, pick), jax.random.split(learn, settings.updates)
            (policy, state), metrics = jax.lax.scan(update, (policy, state), data)
            metrics = jax.tree.map(jnp.mean, metrics)
            metrics |= {"imagined_return": jnp.mean(new.reward), "imagined_ends": jnp.mean(new.discount == 0)}
            return (policy, state, imagined), metrics

        (policy, state, _), metrics = jax.lax.scan(round_, (policy, state, imagined), jnp.arange(settings.rounds))
        policy, share = step_back(policy, objective.trust)
        last = jax.tree.map(lambda leaf: leaf[-1], metrics)
        return policy, state, last | {"kept": share}

    def _imagine(
        self, policy: Policy, models: ModelSet, objective: Objective, starts: Starts, key: Array
    ) -> Experience:
        settings = self.settings
        return imagine(
            policy,
            models,
            starts,
            key,
            particles=settings.particles,
            horizon=settings.horizon,
            steps=settings.returns,
            discount=objective.discount,
        )
