"""Q-learning (Watkins, 1989) with epsilon-greedy actions: the agent that only dithers."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from cdpo.errors import UserError
from cdpo.noise import uniform_pairs
from cdpo.tabular.agents.base import Agent, Plan
from cdpo.tabular.mdp import FiniteMDP
from cdpo.tabular.planning import Known, uniform_policy
from cdpo.tabular.posterior import Prior, Transitions


class QMemory(eqx.Module):
    """The table and what is known."""

    q: Array  # [S, A]
    known: Known


class Noise(NamedTuple):
    """Random numbers of one step."""

    explore: Array  # uniform
    priority: Array  # [A] uniform: order of equals, and the random action


@dataclass(frozen=True)
class QLearning(Agent):
    """Learns the optimal values by temporal differences, one step at a time."""

    name: ClassVar[str] = "q-learning"

    epsilon: float = 0.5
    """Probability of a random action."""
    step_size: float = 0.1
    """Weight of each new target."""

    def __post_init__(self) -> None:
        """Reject settings outside their range."""
        for name in ("epsilon", "step_size"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{name} must be in [0, 1], not {getattr(self, name):g}")

    def begin(self, mdp: FiniteMDP, prior: Prior) -> QMemory:
        """Q = 0."""
        return QMemory(jnp.zeros((mdp.states, mdp.actions)), Known.of(mdp))

    def plan(self, memory: QMemory, state: Array, key: Array) -> tuple[QMemory, Plan]:
        """Nothing to decide; the present epsilon-greedy policy, ties shared."""
        q = jnp.where(memory.known.allowed, memory.q, -jnp.inf)
        greedy = uniform_policy(q == jnp.max(q, axis=-1, keepdims=True))
        policy = (1 - self.epsilon) * greedy + self.epsilon * uniform_policy(memory.known.allowed)
        return memory, Plan(policy, policy, None)

    def noise(self, key: Array, steps: int, known: Known) -> Noise:
        """Uniform numbers."""
        explore, _ = uniform_pairs(key, (steps,))
        priority, _ = uniform_pairs(key, (steps, known.allowed.shape[-1]), stream=1)
        return Noise(explore, priority)

    def act(self, memory: QMemory, state: Array, noise: Noise) -> Array:
        """Epsilon-greedy, random among equals."""
        allowed = memory.known.allowed[state]
        q = jnp.where(allowed, memory.q[state], -jnp.inf)
        candidates = jnp.where(noise.explore < self.epsilon, allowed, q == jnp.max(q))
        return jnp.argmax(jnp.where(candidates, noise.priority, -1.0))

    def learn(self, memory: QMemory, step: Transitions, noise: Noise) -> QMemory:
        """Q(s, a) += step size times the temporal difference."""
        known = memory.known
        ahead = jnp.max(jnp.where(known.allowed[step.successor], memory.q[step.successor], -jnp.inf))
        target = step.reward + known.discount * jnp.where(known.terminal[step.successor], 0.0, ahead)
        change = self.step_size * (target - memory.q[step.state, step.action])
        return QMemory(memory.q.at[step.state, step.action].add(change), known)
