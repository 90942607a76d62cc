"""The two ends of the scale: the optimal policy of the true MDP, and uniformly random actions."""

from abc import abstractmethod
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from cdpo.tabular.agents.base import Agent, Plan
from cdpo.tabular.mdp import FiniteMDP, draw, inverse_cdf_table
from cdpo.tabular.planning import Known, Model, policy_iteration, uniform_policy
from cdpo.tabular.posterior import Prior


class FixedMemory(eqx.Module):
    """A policy that never changes."""

    plan: Plan
    quantiles: Array


class FixedAgent(Agent):
    """Follows one policy for ever."""

    @abstractmethod
    def policy(self, mdp: FiniteMDP) -> Array:
        """The policy, [S, A]."""

    def begin(self, mdp: FiniteMDP, prior: Prior) -> FixedMemory:
        """Fix the policy."""
        policy = self.policy(mdp)
        return FixedMemory(Plan(policy, policy, None), inverse_cdf_table(policy))

    def plan(self, memory: FixedMemory, state: Array, key: Array) -> tuple[FixedMemory, Plan]:
        """The same plan again."""
        return memory, memory.plan

    def act(self, memory: FixedMemory, state: Array, noise: Array) -> Array:
        """Draw from the policy."""
        return draw(memory.quantiles[state], noise)


class Oracle(FixedAgent):
    """The optimal policy of the true MDP; every regret is measured against it."""

    name: ClassVar[str] = "oracle"

    def policy(self, mdp: FiniteMDP) -> Array:
        """Policy iteration on the tables."""
        return policy_iteration(Model.true(mdp), Known.of(mdp), jnp.zeros((mdp.states, mdp.actions)))[0]


class Random(FixedAgent):
    """Uniform over the allowed actions."""

    name: ClassVar[str] = "random"

    def policy(self, mdp: FiniteMDP) -> Array:
        """Equal weights."""
        return uniform_policy(mdp.allowed)
