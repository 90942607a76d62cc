"""Plans: what to do differently from what a policy proposes, found by search on a set of models.

After POPLIN (Wang and Ba 2020): a search begins at the policy, and moves its actions (POPLIN-A) or its parameters
(POPLIN-P).

Plans know no trust region: it is the policy that learns from them which is held in it. Plans that pay for their KL to q
were seen to teach policies that were worse than q on the very models planned on.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from cdpo.dynamics.models import ModelSet
from cdpo.errors import UserError
from cdpo.solvers.critics import traced
from cdpo.solvers.policy import REACH, Policy
from cdpo.solvers.search import Found, SearchSettings, search

# Of the reach of a policy's mean: what lies closer to its end could only be imitated by ever larger parameters.
_PLANNED = 0.9
# Numbers of the candidates in a block of one seed, or of a layer on their rollouts: 256 MiB of them, of which a program
# needs about three times as much. More plans are searched for one block after the other.
_HELD = 2**26


@dataclass(frozen=True)
class PlanSettings(SearchSettings):
    """What is searched for, and how far ahead."""

    moves: Literal["actions", "parameters"] = "parameters"
    """What a search moves: the actions of the policy at each step (POPLIN-A), or its parameters (POPLIN-P)."""
    horizon: int = 10
    """Steps of a plan."""
    reach: float = 1.0
    """First deviation of a search: of actions before squashing; or of parameters, there divided by the root of the
    inputs of their layer."""

    def __post_init__(self) -> None:
        """Colour is of actions."""
        super().__post_init__()
        if self.moves == "parameters" and self.colour:
            raise UserError(f"{self.part}.colour is of actions; leave it out, or choose {self.part}.moves actions")


class Course(NamedTuple):
    """Where N plans for each of P states lead on M models. What follows a termination is zero."""

    states: Array  # [H + 1, N, M, P, d]; what has ended rests
    alive: Array  # [H + 1, N, M, P], 1.0 until the task ends
    mean: Array  # [H, N, M, P, m], actions before squashing
    reward: Array  # [H, N, M, P]


class Planning(NamedTuple):
    """Plans for states [P, d] are [P, H, m], to be added to the policy's actions, or [P, D], to its parameters."""

    settings: PlanSettings
    policy: Policy
    models: ModelSet
    discount: float
    beyond: Callable[[Array], Array | None]  # what follows states [M, B, d] on their models, [M, B]
    trace: float  # share of the longer returns, where values are known

    def none(self, count: int) -> Array:
        """Plans to do what the policy proposes."""
        if self.settings.moves == "actions":
            return jnp.zeros((count, self.settings.horizon, self.policy.actions))
        return jnp.zeros((count, ravel_pytree(self.policy.net)[0].size))

    def left(self, plans: Array) -> Array:
        """What is left of plans after their first step."""
        if self.settings.moves == "parameters":
            return plans
        return jnp.concatenate([plans[:, 1:], jnp.zeros_like(plans[:, :1])], axis=1)

    def better(self, states: Array, plans: Array, key: Array) -> Found:
        """Plans for states [P, d], searched for from the given ones on. All candidates of one meet the same noise."""
        deviation = self._deviation()

        def one(problem: tuple[Array, Array, Array]) -> Found:
            state, plan, key = problem
            find, roll = jax.random.split(key)

            def score(candidates: Array) -> Array:
                return self.worth(self.course(state[None], candidates[:, None], roll))[:, 0]

            return search(score, plan, deviation, find, self.settings)

        problems = states, plans, jax.random.split(key, len(plans))
        return jax.lax.map(one, problems, batch_size=_block(len(plans), self._size(plans[0])))

    def course(self, states: Array, plans: Array, key: Array) -> Course:
        """Of plans [N, P, ...] from states [P, d]."""
        models = self.models
        count, problems = plans.shape[:2]
        acting, moves = self._acting(plans)

        def step(carry: tuple[Array, Array], here: tuple[Array, Array]) -> tuple[tuple[Array, Array], tuple]:
            observation, alive = carry
            key, move = here
            mean = jnp.clip(acting(observation, move), -_PLANNED * REACH, _PLANNED * REACH)
            following, reward, terminated = jax.vmap(models.step, (0, 0, None))(observation, jnp.tanh(mean), key)
            after = alive * (1 - terminated)
            carried = jnp.where(after[..., None] > 0, following, observation)
            return (carried, after), (carried, after, mean, jnp.where(alive > 0, reward, 0.0))

        shape = (count, models.count, problems)
        begin, alive = jnp.broadcast_to(states, (*shape, states.shape[-1])), jnp.ones(shape)
        keys = jax.random.split(key, self.settings.horizon)
        _, (following, after, *seen) = jax.lax.scan(step, (begin, alive), (keys, moves))
        path, lives = (jnp.concatenate([first[None], rest]) for first, rest in ((begin, following), (alive, after)))
        return Course(path, lives, *seen)

    def worth(self, course: Course) -> Array:
        """The mean over the models of what plans return, with what follows, for each of their steps, [N, P]."""
        weight = (self.discount ** jnp.arange(self.settings.horizon))[:, None, None, None]
        alive, states = course.alive[1:], course.states[1:]
        by_model = jnp.moveaxis(states, 2, 0).reshape(self.models.count, -1, states.shape[-1])
        later = self.beyond(by_model)
        if later is None:
            total = jnp.sum(weight * course.reward, axis=0)
        else:
            steps, count, models, problems = alive.shape
            later = jnp.moveaxis(later.reshape(models, steps, count, problems), 0, 2)
            total = traced(course.reward, alive, later, self.discount, self.trace)[0]
        return jnp.mean(total, axis=1) / jnp.sum(weight)

    def policies(self, plans: Array) -> Policy:
        """With parameters moved by plans [..., D]."""
        flat, structure = ravel_pytree(self.policy.net)
        for _ in plans.shape[:-1]:
            structure = jax.vmap(structure)
        return eqx.tree_at(lambda p: p.net, self.policy, structure(flat + plans))

    def _acting(self, plans: Array) -> tuple[Callable[[Array, Array], Array], Array]:
        """A function from states [N, M, P, d] and the moves of a step to means [N, M, P, m]; and moves by steps."""
        if self.settings.moves == "actions":
            return lambda states, move: self.policy(states).mean + move[:, None], jnp.moveaxis(plans, 2, 0)
        moved = self.policies(plans)

        def act(states: Array, _: Array) -> Array:
            return jnp.moveaxis(moved(jnp.moveaxis(states, 1, 2)).mean, 2, 1)

        return act, jnp.zeros(self.settings.horizon)

    def _size(self, plan: Array) -> int:
        """Of what a search holds: the numbers of its candidates, or those of a layer on all of their rollouts."""
        widest = max(bias.shape[-1] for bias in self.policy.net.biases)
        return self.settings.candidates * max(plan.size, self.settings.horizon * self.models.count * widest)

    def _deviation(self) -> Array:
        """Of the first draws."""
        reach, net = self.settings.reach, self.policy.net
        if self.settings.moves == "actions":
            return jnp.asarray(reach)
        sizes = [weight.shape[0] ** -0.5 for weight in net.weights]
        weights, biases = (
            [jnp.full_like(leaf, size) for leaf, size in zip(leaves, sizes, strict=True)]
            for leaves in (net.weights, net.biases)
        )
        # The second half of what a policy's network says are deviations.
        held = [leaf.at[..., self.policy.actions :].set(0.0) for leaf in (weights[-1], biases[-1])]
        weights[-1], biases[-1] = held
        noise = eqx.tree_at(lambda n: (n.weights, n.biases), net, (tuple(weights), tuple(biases)))
        return reach * ravel_pytree(noise)[0]


def _block(count: int, size: int) -> int:
    """How many of `count` problems, each of this `size`, are held at a time: as many as may be, in equal blocks.

    A last one that is shorter would be compiled by itself.
    """
    lengths = (block for block in range(count, 1, -1) if count % block == 0)
    return next((block for block in lengths if block * size <= _HELD), 1)
