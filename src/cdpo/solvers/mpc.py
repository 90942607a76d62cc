"""Model-predictive control as a teacher: plans by search, and a policy that learns to do what was planned."""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from cdpo.dynamics.models import ModelSet
from cdpo.dynamics.networks import MLP
from cdpo.errors import UserError
from cdpo.solvers.base import Metrics, Objective, Size, Starts, StartSettings, step_back
from cdpo.solvers.plans import Planning, PlanSettings
from cdpo.solvers.policy import Gaussian, Policy, mean_divergence, noise_error
from cdpo.solvers.values import Critics, CriticSettings, Memory, roll_out


@dataclass(frozen=True)
class MPCSettings(PlanSettings, CriticSettings, StartSettings):
    """What is planned, from where, and how the policy learns from it."""

    part: ClassVar[str] = "mpc"

    learning_rate: float = 2e-3
    """Of the policy, at the beginning of an update; and of critics."""
    critic_steps: int = 2
    """Gradient steps of the critics after each of the policy, on rollouts of that policy."""
    value: bool = True
    """Whether plans are worth, beside their rewards, a learned value of where they lead."""
    plans: int = 32
    """States of a round from which plans begin."""
    steps: int = 1
    """Steps that are taken from each, planned anew from what is left of the plan before."""
    imitated: int = 10
    """First steps of each plan that the policy learns, all of a shorter one; later ones see less far ahead."""
    distils: Literal["cloning", "averaging"] = "cloning"
    """How the policy learns: it imitates plans, or takes the mean of the parameters that were found."""
    rounds: int = 10
    """Times that plans are made in one update."""
    kept: int = 8
    """Rounds whose plans are imitated: with those of one alone, a policy forgets what it does elsewhere."""
    updates: int = 30
    """Gradient steps of the policy after each round."""
    batch: int = 256
    """Planned steps in a batch."""
    particles: int = 32
    """Rollouts of each model from which critics learn, `horizon` steps after each gradient step of the policy."""
    rolled: int = 100
    """Steps, on average, after which such a rollout begins anew: critics must know where the policy itself leads."""
    deviation: float = 0.2
    """Standard deviation of every part of an action, before squashing, that is held at every state."""
    multiplier_rate: float = 0.1
    """Of the logarithm of the trust region's multiplier, per gradient step and excess."""

    def __post_init__(self) -> None:
        """Averages are of parameters."""
        super().__post_init__()
        if self.distils == "averaging" and self.moves != "parameters":
            raise UserError("mpc.distils averaging is of parameters; choose mpc.moves parameters, or cloning")


class Lesson(NamedTuple):
    """What was planned."""

    states: Array  # [B, d]
    mean: Array  # [B, m], of actions before squashing
    weight: Array  # [B], 1.0, or 0.0 after an end


class Learning(NamedTuple):
    """What gradient steps change."""

    policy: Policy
    optimiser: Any
    state: Memory
    walked: Array  # [M, particles, d], where the rollouts of critics have come


class MPC(NamedTuple):
    """The solver."""

    settings: MPCSettings

    @property
    def _descent(self) -> optax.GradientTransformation:
        """Of the policy, in steps that shrink to nothing: at the end it settles on the mean of many plans."""
        settings = self.settings
        total = settings.rounds * settings.updates
        return optax.adam(lambda count: settings.learning_rate * (1 - count / total))

    def begin(self, policy: Policy, models: int, key: Array) -> Memory:
        """Untrained critics, if there are any."""
        critics = Critics.create(policy, models, self.settings, key) if self.settings.value else None
        return Memory.create(critics)

    def renormalised(self, state: Memory, old: Policy, new: Policy, size: Size) -> Memory:
        """The same values after the policy's normaliser changed and what is paid is of another `size`."""
        return state.renormalised(old, new, size)

    def beyond(self, state: Memory, policy: Policy, states: Array) -> Array | None:
        """What follows states, by the target critics and within bounds."""
        return state.beyond(policy, states)

    def __call__(
        self, policy: Policy, models: ModelSet, objective: Objective, *, starts: Starts, state: Memory, key: Array
    ) -> tuple[Policy, Memory, Metrics]:
        """Plan, learn what was planned, and again; at last step back into the trust region if it was left."""
        settings = self.settings
        # Where parameters are averaged, a lesson is to stay there: one of an earlier round would lead back.
        kept = min(settings.kept, settings.rounds) if settings.distils == "cloning" else 1
        blank = jax.eval_shape(lambda: self._planned(policy, models, objective, starts, state, key)[1])
        lessons = jax.tree.map(lambda leaf: jnp.zeros((kept, *leaf.shape)), blank)

        def round_(carry: tuple[Learning, Lesson], number: Array) -> tuple[tuple, Metrics]:
            learning, lessons = carry
            plan, learn = jax.random.split(jax.random.fold_in(key, number))
            policy, new, told = self._planned(learning.policy, models, objective, starts, learning.state, plan)
            lessons = jax.tree.map(lambda all_, one: all_.at[number % kept].set(one), lessons, new)
            update = partial(self._update, lessons, jnp.minimum(number + 1, kept), models, objective, starts)
            learning, metrics = jax.lax.scan(
                update, learning._replace(policy=policy), jax.random.split(learn, settings.updates)
            )
            return (learning, lessons), told | jax.tree.map(jnp.mean, metrics)

        optimiser = self._descent.init(eqx.filter(policy.net, eqx.is_array))
        begin = starts.draw(jax.random.fold_in(key, settings.rounds), (models.count, settings.particles))
        learning = Learning(policy, optimiser, state, begin)
        (learning, _), metrics = jax.lax.scan(round_, (learning, lessons), jnp.arange(settings.rounds))
        policy, share = step_back(learning.policy, objective.trust)
        last = jax.tree.map(lambda leaf: leaf[-1], metrics)
        return policy, learning.state, last | {"kept": share}

    def _planned(
        self, policy: Policy, models: ModelSet, objective: Objective, starts: Starts, state: Memory, key: Array
    ) -> tuple[Policy, Lesson, Metrics]:
        """What to learn from new plans; and the policy, already another one if it takes the mean of what was found."""
        settings = self.settings
        beyond = partial(self.beyond, state, policy)
        planning = Planning(settings, policy, models, objective.discount, beyond, settings.trace)
        problems = jnp.arange(settings.plans)

        def step(carry: tuple[Array, Array], key: Array) -> tuple[tuple[Array, Array], tuple]:
            states, plans = carry
            find, roll, fresh = jax.random.split(key, 3)
            found = planning.better(states, plans, find)
            course = planning.course(states, found.best[None], roll)
            # A trajectory keeps its model.
            ahead, alive = (each[1, 0, problems % models.count, problems] for each in (course.states, course.alive))
            ended = alive[:, None] == 0
            plans = planning.left(found.best)
            again = jnp.where(ended.reshape(-1, *(1,) * (plans.ndim - 1)), 0.0, plans)
            states = jnp.where(ended, starts.draw(fresh, (settings.plans,)), ahead)
            return (states, again), (course, found)

        draw, rest = jax.random.split(key)
        begin = starts.draw(draw, (settings.plans,)), planning.none(settings.plans)
        _, (course, found) = jax.lax.scan(step, begin, jax.random.split(rest, settings.steps))
        first = slice(0, min(settings.imitated, settings.horizon))  # of where a plan ends nothing is planned
        lesson = Lesson(course.states[:, first], course.mean[:, first], course.alive[:, first])
        lesson = Lesson(*(part.reshape(-1, *part.shape[5:]) for part in lesson))
        if settings.distils == "averaging":
            policy = planning.policies(jnp.mean(found.best, axis=(0, 1)))
            lesson = lesson._replace(mean=policy(lesson.states).mean)
        told = {
            "gain": jnp.mean(found.value - found.first),
            "imagined_return": jnp.mean(jnp.sum(course.reward, axis=1)),
            "imagined_ends": jnp.mean(1 - course.alive[:, -1]),
        }
        return policy, lesson, told

    def _update(
        self,
        lessons: Lesson,
        filled: Array,
        models: ModelSet,
        objective: Objective,
        starts: Starts,
        learning: Learning,
        key: Array,
    ) -> tuple[Learning, Metrics]:
        """A gradient step of the policy towards the first `filled` of lessons [kept, B], and some of the critics."""
        settings, trust = self.settings, objective.trust
        policy, optimiser, state, walked = learning
        pick, look, walk = jax.random.split(key, 3)
        block = lessons.weight.shape[1]
        place = jax.random.randint(pick, (settings.batch,), 0, filled * block)
        batch = jax.tree.map(lambda leaf: leaf[place // block, place % block], lessons)
        watched, chosen = trust.some_watched(look)
        multiplier = trust.multiplier(state.log_multiplier)

        def loss(net: MLP) -> tuple[Array, tuple[Array, Array, Array]]:
            acting = eqx.tree_at(lambda p: p.net, policy, net)
            everywhere = acting(jnp.concatenate([batch.states, watched]))
            here, there = (Gaussian(*(part[rows] for part in everywhere)) for rows in _split(settings.batch))
            error = jnp.sum(((here.mean - batch.mean) / settings.deviation) ** 2, axis=-1) / 2
            imitation = jnp.sum(batch.weight * error) / jnp.maximum(jnp.sum(batch.weight), 1.0)
            off = jnp.mean(noise_error(here.log_deviation, settings.deviation))
            spent = mean_divergence(there, chosen)
            total = trust.lagrangian(imitation + off, spent, multiplier)
            return total, (imitation, jnp.mean(here.log_deviation), spent)

        (_, (imitation, noise, spent)), gradient = eqx.filter_value_and_grad(loss, has_aux=True)(policy.net)
        change, optimiser = self._descent.update(gradient, optimiser)
        policy = eqx.tree_at(lambda p: p.net, policy, eqx.apply_updates(policy.net, change))
        state, walked, told = self._fitted(state, policy, models, objective, starts, walked, walk)
        adapted = trust.adapted(state.log_multiplier, spent, settings.multiplier_rate)
        state = state._replace(log_multiplier=adapted)
        told |= {"imitation": imitation, "log_deviation": noise, "multiplier": multiplier}
        return Learning(policy, optimiser, state, walked), told

    def _fitted(
        self,
        state: Memory,
        policy: Policy,
        models: ModelSet,
        objective: Objective,
        starts: Starts,
        walked: Array,
        key: Array,
    ) -> tuple[Memory, Array, Metrics]:
        """With critics, if there are any, that learned from rollouts as they went on; and how far these came."""
        settings, (discount, trust) = self.settings, objective
        if state.critics is None:
            return state, walked, {}
        roll, draw, choose = jax.random.split(key, 3)
        path = roll_out(policy, trust.centre, models, walked, roll, settings.horizon)
        state = state.having_seen(path, discount)
        state, told = state.fitted(policy, path, state.returns(path, policy, discount, settings.trace), settings)
        anew = jax.random.uniform(choose, walked.shape[:-1]) < settings.horizon / settings.rolled
        anew = (path.alive[-1] == 0) | anew
        walked = jnp.where(anew[..., None], starts.draw(draw, anew.shape), path.states[-1])
        return state, walked, told


def _split(count: int) -> tuple[slice, slice]:
    return slice(0, count), slice(count, None)
