"""What the tabular tests share: small random MDPs, the exact quantities in float64, and one run of each agent.

Compiling an agent takes seconds, so the runs are all on a chain of five states with the ledger kept: learning, the
ledger and the simulation's promises are tested on the same few executables.
"""

from functools import cache

import numpy as np
import pytest

from cdpo.tabular.agents import Agent
from cdpo.tabular.environments import Chain
from cdpo.tabular.mdp import FiniteMDP
from cdpo.tabular.planning import Known, Model
from cdpo.tabular.simulation import Run, simulate


def _random_mdp(rng, states=4, actions=3, *, ending=False, masked=False, discount=0.9):
    """Sparse-ish rows, rewards around zero; the last state terminal, some actions missing, where asked."""
    transition = rng.dirichlet(np.full(states, 0.5), size=(states, actions))
    transition[transition < 0.02] = 0
    transition /= transition.sum(-1, keepdims=True)
    terminal = np.zeros(states, bool)
    terminal[-1] = ending
    allowed = np.ones((states, actions), bool)
    if masked:
        allowed = rng.random((states, actions)) < 0.6
        allowed[np.arange(states), rng.integers(actions, size=states)] = True
    start = rng.dirichlet(np.ones(states)) * ~terminal
    return FiniteMDP(
        transition,
        rng.normal(size=(states, actions, states)),
        rng.uniform(0.1, 1, size=(states, actions, states)),
        start=start / start.sum(),
        terminal=terminal,
        allowed=allowed,
        discount=discount,
    )


def _random_policy(rng, allowed, *, sharp=0.5):
    """A stochastic policy on the allowed actions, with some exact zeros."""
    policy = rng.dirichlet(np.full(allowed.shape[1], sharp), size=allowed.shape[0]) * allowed
    policy[policy < 0.05] = 0
    empty = policy.sum(-1) == 0
    policy[empty, np.argmax(allowed, axis=1)[empty]] = 1
    return policy / policy.sum(-1, keepdims=True)


class Exact:
    """A model in float64: no value flows back from terminal states."""

    def __init__(self, model, known):
        self.transition = np.asarray(model.transition, np.float64)
        self.reward = np.asarray(model.reward, np.float64)
        self.start = np.asarray(known.start, np.float64)
        self.discount = float(known.discount)

    @classmethod
    def of(cls, mdp):
        return cls(Model.true(mdp), Known.of(mdp))

    def under(self, policy):
        policy = np.asarray(policy, np.float64)
        return np.einsum("sa,sat->st", policy, self.transition), np.sum(policy * self.reward, axis=1)

    def value(self, policy):
        transition, reward = self.under(policy)
        return np.linalg.solve(np.eye(len(reward)) - self.discount * transition, reward)

    def q(self, policy):
        return self.reward + self.discount * self.transition @ self.value(policy)

    def j(self, policy):
        return self.start @ self.value(policy)

    def visitation(self, policy, start=None):
        """By summing the series, not by solving."""
        transition, _ = self.under(policy)
        at = self.start if start is None else start
        total = np.zeros_like(at)
        for h in range(2000):
            total += (1 - self.discount) * self.discount**h * at
            at = at @ transition
        return total


@pytest.fixture(scope="session")
def random_mdp():
    return _random_mdp


@pytest.fixture(scope="session")
def random_policy():
    return _random_policy


@pytest.fixture(scope="session")
def exact():
    return Exact


@pytest.fixture(scope="session")
def chain_run():
    """The run of an agent with eight seeds on the chain of five states, for as long as the original study's."""

    @cache
    def run(agent: Agent) -> Run:
        return simulate(Chain(5), agent, seeds=8, steps=6250, ledger=True)

    return run
