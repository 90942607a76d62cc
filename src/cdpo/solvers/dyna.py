"""Dyna: imagined rollouts on a set of models, and a model-free learner on what they bring."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cdpo.dynamics.models import ModelSet
from cdpo.dynamics.replay import Experience, Transition, draw_below
from cdpo.errors import UserError
from cdpo.solvers.base import Metrics, Objective, Size, Starts, StartSettings, step_back
from cdpo.solvers.critics import by_model
from cdpo.solvers.expansion import Expansion, expand
from cdpo.solvers.offpolicy import OffPolicyLearner
from cdpo.solvers.onpolicy import OnPolicyLearner
from cdpo.solvers.policy import Policy
from cdpo.solvers.rollouts import imagine, n_step


@dataclass(frozen=True)
class DynaSettings(StartSettings, shaping=("real",), zero=("real", "earlier"), shares=("real",)):
    """How much is imagined, where it begins, and how much is learned from it."""

    part: ClassVar[str] = "dyna"

    rounds: int = 10
    """Times that new rollouts are made in one update."""
    kept: int = 4
    """Rounds whose rollouts are learned from: those of policies long past mislead returns of several steps."""
    earlier: int = 0
    """Policies before the last one that are rolled out too, on the models of now, before the first round: as many
    rollouts of each as are kept. Critics that learn from these as well know more than what one policy does."""
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
    expansion: Expansion = "none"
    """What critics aim at: a transition as it is; rolled on under its model before a critic is asked (mve); or a mix of
    all lengths up to that, each by how little models and critics disagree about it (steve)."""
    expanded: int = 5
    """Steps by which a transition is rolled on."""

    def __post_init__(self) -> None:
        """Some transitions are imagined."""
        super().__post_init__()
        if self.real == 1:
            raise UserError("dyna.real must be below 1; without a model: --agent sac")


class DynaState(NamedTuple):
    """What the solver remembers."""

    learner: Any  # its state
    earlier: tuple[Policy, ...]  # with which the last updates began, the newest first


class Dyna(NamedTuple):
    """The solver."""

    settings: DynaSettings
    learner: OffPolicyLearner | OnPolicyLearner

    def begin(self, policy: Policy, models: int, key: Array) -> DynaState:
        """Before the first update all earlier policies are the untrained one."""
        return DynaState(self.learner.begin(policy, models, key), (policy,) * self.settings.earlier)

    def renormalised(self, state: DynaState, old: Policy, new: Policy, size: Size) -> DynaState:
        """The same state after the policy's normaliser changed and what is paid is of another `size`.

        Earlier policies keep their own normalisers.
        """
        return state._replace(learner=self.learner.renormalised(state.learner, old, new, size))

    def beyond(self, state: DynaState, policy: Policy, states: Array) -> Array | None:
        """What the learner says of states."""
        return self.learner.beyond(state.learner, policy, states)

    def __call__(
        self, policy: Policy, models: ModelSet, objective: Objective, *, starts: Starts, state: DynaState, key: Array
    ) -> tuple[Policy, DynaState, Metrics]:
        """Imagine, learn, and again; at last step back into the trust region if the learner left it."""
        settings = self.settings
        kept = min(settings.kept, settings.rounds)
        known = kept * len(state.earlier)  # blocks of the past that earlier policies fill

        def imagined(policy: Policy, key: Array) -> Transition:
            shape = {"particles": settings.particles, "horizon": settings.horizon}
            return imagine(policy, models, starts, key, **shape)

        def recalled(taken: Transition) -> Experience:
            return jax.tree.map(by_model, n_step(taken, settings.returns, objective.discount, models.reach))

        def round_(carry: tuple, number: Array) -> tuple[tuple, Metrics]:
            policy, state, past = carry
            fresh, pick, learn = jax.random.split(jax.random.fold_in(key, number), 3)
            taken = imagined(policy, fresh)
            if isinstance(self.learner, OnPolicyLearner):
                new, counts = n_step(taken, 1, objective.discount), None
                policy, state, metrics = self.learner.learn(policy, state, taken, objective, learn)
            else:
                new, counts = recalled(taken), None
                if models.reach is not None:
                    counts = jnp.arange(settings.horizon * settings.particles) < models.reach * settings.particles
                past = jax.tree.map(lambda all_, one: all_.at[known + number % kept].set(one), past, new)
                filled = known + jnp.minimum(number + 1, kept)
                batches = self._batches(self.learner.batches, past, filled, models.reach, starts, objective, pick)
                policy, state, metrics = self._updated(self.learner, policy, state, models, batches, objective, learn)
            metrics["imagined_return"] = jnp.mean(new.reward, where=counts)
            metrics["imagined_ends"] = jnp.mean(new.discount == 0, where=counts)
            return (policy, state, past), metrics

        def rolled(policy: Policy, key: Array) -> Experience:
            return jax.lax.map(lambda one: recalled(imagined(policy, one)), jax.random.split(key, kept))

        past = None
        if not isinstance(self.learner, OnPolicyLearner):
            keys = (jax.random.fold_in(key, settings.rounds + number) for number in range(len(state.earlier)))
            before = [rolled(each, one) for each, one in zip(state.earlier, keys, strict=True)]
            none = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), jax.eval_shape(rolled, policy, key))
            past = jax.tree.map(lambda *blocks: jnp.concatenate(blocks), *before, none)
        begin = policy, self.learner.fresh(policy, state.learner), past
        (better, learned, _), metrics = jax.lax.scan(round_, begin, jnp.arange(settings.rounds))
        better, share = step_back(better, objective.trust)
        last = jax.tree.map(lambda leaf: leaf[-1], metrics)
        return better, DynaState(learned, (policy, *state.earlier)[: settings.earlier]), last | {"kept": share}

    def _batches(
        self,
        count: int,
        past: Experience,
        filled: Array,
        reach: Array | None,
        starts: Starts,
        objective: Objective,
        key: Array,
    ) -> Experience:
        """All that a round learns from, [updates, count, M, B]: drawn at once, no gradient step waits for its data.

        From the first `filled` rounds of the past [kept, M, N], within `reach`, and from real transitions.
        """
        which, real = jax.random.split(key)
        _, models, whole = past.reward.shape
        block = whole if reach is None else reach * self.settings.particles  # what came first is first in a block
        shape = (self.settings.updates, count, models)
        real_rows = round(self.settings.real * self.settings.batch)
        place = draw_below(which, (*shape, self.settings.batch - real_rows), filled * block)
        rows = jnp.arange(models)[:, None]
        batches = jax.tree.map(lambda leaf: leaf[place // block, rows, place % block], past)
        if not real_rows:
            return batches
        step = starts.visited.draw(real, (*shape, real_rows))
        # A model's actions may have more parts than real ones (HUCRL's choice of the next state); the reference is the
        # model where that choice is zero, and real data are its data.
        missing = batches.action.shape[-1] - step.action.shape[-1]
        action = jnp.pad(step.action, ((0, 0),) * 4 + ((0, missing),))
        follows = objective.discount * (1 - step.terminated)
        drawn = Experience(step.observation, action, step.reward, step.next, follows, jnp.ones_like(follows))
        return jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=3), batches, drawn)

    def _updated(
        self,
        learner: OffPolicyLearner,
        policy: Policy,
        state: Any,
        models: ModelSet,
        batches: Experience,
        objective: Objective,
        key: Array,
    ) -> tuple[Policy, Any, Metrics]:
        """After an update on each of batches [updates, K, M, B]; metrics are means over them."""
        settings, discount = self.settings, objective.discount

        def update(carry: tuple[Policy, Any], one: tuple[Experience, Array]) -> tuple[tuple[Policy, Any], Metrics]:
            (policy, state), (batches, key) = carry, one
            if settings.expansion == "none":
                policy, state, metrics = learner.update(policy, state, batches, objective, key)
            else:
                roll, key = jax.random.split(key)
                ahead = expand(
                    settings.expansion, policy, models, batches, roll, steps=settings.expanded, discount=discount
                )
                policy, state, metrics = learner.update(policy, state, batches, objective, key, ahead)
            return (policy, state), metrics

        (policy, state), metrics = jax.lax.scan(
            update, (policy, state), (batches, jax.random.split(key, settings.updates))
        )
        return policy, state, jax.tree.map(jnp.mean, metrics)
