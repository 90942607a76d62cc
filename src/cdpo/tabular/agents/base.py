"""What every tabular agent shares: the hooks of the simulation's loop, and the posterior agents' loop."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from cdpo.noise import uniform_pairs
from cdpo.tabular.mdp import FiniteMDP, draw, inverse_cdf_table
from cdpo.tabular.planning import Known, Model, uniform_policy
from cdpo.tabular.posterior import Posterior, Prior, Transitions

Memory = Any  # an agent's own pytree


class Plan(NamedTuple):
    """What an agent decided for one block of steps."""

    policy: Array  # [S, A], pi_t: the policy that acts
    reference: Array  # [S, A], q_t: the policy of the referential update; pi_t itself where there is only one update
    model: Model | None  # the model that q_t is optimal on; None for agents that plan on none


@dataclass(frozen=True)
class Agent(ABC):
    """The hooks of one loop, for one seed; the fields of a subclass are its settings.

    memory = begin(mdp, prior)
    for each block:
        memory, plan = plan(memory, state, key)
        for each step of the block:
            action = act(memory, state, noise)
            memory = learn(memory, step, noise)
        memory = absorb(memory, steps)

    A NaN or an infinity in a plan or in the memory ends the seed.
    """

    name: ClassVar[str]

    @abstractmethod
    def begin(self, mdp: FiniteMDP, prior: Prior) -> Memory:
        """Memory before the first step. Only the oracle may look at the tables of `mdp`."""

    @abstractmethod
    def plan(self, memory: Memory, state: Array, key: Array) -> tuple[Memory, Plan]:
        """Decide for the coming block, which begins at `state`."""

    def noise(self, key: Array, steps: int, known: Known) -> Any:
        """All random numbers of a block's steps, leading axis `steps`."""
        return uniform_pairs(key, (steps,))[0]

    @abstractmethod
    def act(self, memory: Memory, state: Array, noise: Any) -> Array:
        """Choose an action."""

    def learn(self, memory: Memory, step: Transitions, noise: Any) -> Memory:
        """Learn from one step, for agents that learn at every step. The fields of `step` are scalars."""
        return memory

    def absorb(self, memory: Memory, steps: Transitions) -> Memory:
        """Learn from a whole block."""
        return memory


class Belief(NamedTuple):
    """What a posterior agent plans with."""

    posterior: Posterior
    known: Known
    state: Array  # the current state


class PosteriorMemory(eqx.Module):
    """Memory of a posterior agent."""

    posterior: Posterior
    known: Known
    plan: Plan
    quantiles: Array  # of the acting policy


def without_model(plan: Plan) -> Plan:
    """The policies alone, which is all that is remembered of a plan."""
    return plan._replace(model=None)


class PosteriorAgent(Agent):
    """Agents that keep the conjugate posterior and decide anew for each block; a subclass is its `improve`."""

    @abstractmethod
    def improve(self, last: Plan, belief: Belief, key: Array) -> Plan:
        """Algorithm-specific lines: on which models the policy is optimised, and by which updates."""

    def begin(self, mdp: FiniteMDP, prior: Prior) -> PosteriorMemory:
        """An empty posterior and the uniform policy."""
        known = Known.of(mdp)
        posterior = Posterior.initial(mdp.states, mdp.actions, prior)
        policy = uniform_policy(known.allowed)
        return PosteriorMemory(posterior, known, Plan(policy, policy, None), policy)

    def plan(self, memory: PosteriorMemory, state: Array, key: Array) -> tuple[PosteriorMemory, Plan]:
        """Improve on the last plan."""
        plan = self.improve(memory.plan, Belief(memory.posterior, memory.known, state), key)
        quantiles = inverse_cdf_table(plan.policy)
        return PosteriorMemory(memory.posterior, memory.known, without_model(plan), quantiles), plan

    def act(self, memory: PosteriorMemory, state: Array, noise: Array) -> Array:
        """Draw from the policy, anew at every step."""
        return draw(memory.quantiles[state], noise)

    def absorb(self, memory: PosteriorMemory, steps: Transitions) -> PosteriorMemory:
        """Condition the posterior on the block."""
        return PosteriorMemory(memory.posterior.update(steps), memory.known, memory.plan, memory.quantiles)


def probability_of_best(mean: Array, deviation: Array, allowed: Array, points: int = 128) -> Array:
    """P(action a has the largest draw) for independent Gaussians, [S, A].

    An agent that draws all values anew at every step and takes the largest follows exactly this policy. Two
    actions have a closed form; for more, P = E_x[prod_b Phi((m_a + d_a x - m_b) / d_b)] at the quantiles of x.
    """
    mean = jnp.where(allowed, mean, -1e9)
    deviation = jnp.maximum(jnp.where(allowed, deviation, 0.0), 1e-9)
    if mean.shape[-1] == 1:
        return jnp.ones_like(mean)
    if mean.shape[-1] == 2:
        z = (mean[:, 0] - mean[:, 1]) / jnp.hypot(deviation[:, 0], deviation[:, 1])
        first = jax.scipy.special.ndtr(z)
        return jnp.stack([first, 1 - first], axis=-1)
    x = jax.scipy.special.ndtri((jnp.arange(points) + 0.5) / points)
    draws = mean[:, :, None] + deviation[:, :, None] * x  # [S, A, points]
    z = (draws[:, :, None, :] - mean[:, None, :, None]) / deviation[:, None, :, None]  # [S, a, b, points]
    own = jnp.eye(mean.shape[-1], dtype=bool)[None, :, :, None]
    below = jnp.prod(jnp.where(own, 1.0, jax.scipy.special.ndtr(z)), axis=2)
    probability = jnp.mean(below, axis=-1) * allowed
    return probability / jnp.sum(probability, axis=-1, keepdims=True)
