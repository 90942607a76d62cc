"""Bayesian Q-learning (Dearden et al., 1998): a Normal-Gamma belief on the return of each state and action."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import digamma, polygamma

from cdpo.errors import UserError
from cdpo.noise import fold
from cdpo.tabular.agents.base import Agent, Plan
from cdpo.tabular.mdp import FiniteMDP
from cdpo.tabular.planning import Known
from cdpo.tabular.posterior import NormalGamma, Prior, Transitions
from cdpo.tabular.samplers import student_t

_POLICY_DRAWS = 256  # for the policy's probabilities, which only the regret of values looks at


class BQLMemory(eqx.Module):
    """Belief on returns, fields [S, A], and what is known."""

    returns: NormalGamma
    known: Known


class Noise(NamedTuple):
    """Random numbers of one step."""

    action: Array  # key of the Thompson draw
    update: Array  # key of the mixture's draws


@dataclass(frozen=True)
class BQL(Agent):
    """Thompson-samples returns; learns by the mixture update over the next return, projected on a Normal-Gamma."""

    name: ClassVar[str] = "bql"

    samples: int = 1000
    """Draws of the next return in each update."""

    def __post_init__(self) -> None:
        """Reject settings outside their range."""
        if self.samples < 2:
            raise UserError(f"samples must be at least 2, not {self.samples}")

    def begin(self, mdp: FiniteMDP, prior: Prior) -> BQLMemory:
        """The prior for every state and action."""
        fields = (prior.mean, prior.strength, prior.shape, prior.rate)
        returns = NormalGamma(*(jnp.full((mdp.states, mdp.actions), x) for x in fields))
        return BQLMemory(returns, Known.of(mdp))

    def plan(self, memory: BQLMemory, state: Array, key: Array) -> tuple[BQLMemory, Plan]:
        """Nothing to decide; the present Thompson policy, by simulation."""
        keys = jax.vmap(lambda index: fold(key, index))(jnp.arange(_POLICY_DRAWS))
        draws = jnp.where(memory.known.allowed, jax.vmap(memory.returns.sample_mean)(keys), -jnp.inf)
        chosen = jax.nn.one_hot(jnp.argmax(draws, axis=-1), draws.shape[-1])
        policy = jnp.mean(chosen, axis=0)
        return memory, Plan(policy, policy, None)

    def noise(self, key: Array, steps: int, known: Known) -> Noise:
        """Keys."""
        keys = jax.vmap(lambda index: fold(key, index))
        return Noise(keys(jnp.arange(steps)), keys(steps + jnp.arange(steps)))

    def act(self, memory: BQLMemory, state: Array, noise: Noise) -> Array:
        """Largest draw of the mean return."""
        here = jax.tree.map(lambda x: x[state], memory.returns)
        return jnp.argmax(jnp.where(memory.known.allowed[state], here.sample_mean(noise.action), -jnp.inf))

    def learn(self, memory: BQLMemory, step: Transitions, noise: Noise) -> BQLMemory:
        """Mixture update of the belief at (s, a)."""
        returns, known = memory.returns, memory.known
        ahead = jax.tree.map(lambda x: x[step.successor], returns)
        best = jnp.argmax(jnp.where(known.allowed[step.successor], ahead.mean, -jnp.inf))
        ahead = jax.tree.map(lambda x: x[best], ahead)
        # The predictive distribution of a return is a Student t.
        scale = jnp.sqrt(ahead.rate * (ahead.strength + 1) / (ahead.shape * ahead.strength))
        following = ahead.mean + scale * student_t(noise.update, jnp.full(self.samples, 2 * ahead.shape))
        following = jnp.where(known.terminal[step.successor], 0.0, following)
        here = jax.tree.map(lambda x: x[step.state, step.action], returns)
        new = mixture_update(here, step.reward + known.discount * following)
        cell = (step.state, step.action)
        return BQLMemory(jax.tree.map(lambda x, y: x.at[cell].set(y), returns, new), known)


def mixture_update(belief: NormalGamma, observed: Array) -> NormalGamma:
    """Mix the posteriors after each possible observation [n], projected on one Normal-Gamma by its moments."""
    strength = belief.strength + 1
    shape = belief.shape + 0.5
    mean = (belief.strength * belief.mean + observed) / strength
    rate = belief.rate + belief.strength * (observed - belief.mean) ** 2 / (2 * strength)
    precision = jnp.mean(shape / rate)  # E[tau]
    centre = jnp.mean(mean * shape / rate) / precision  # E[mu tau] / E[tau]
    # E[mu^2 tau] - E[tau] centre^2, written so that nothing cancels.
    spread = 1 / strength + jnp.mean((mean - centre) ** 2 * shape / rate)
    log_precision = digamma(shape) - jnp.mean(jnp.log(rate))  # E[log tau]
    new_shape = jnp.maximum(1 + 1e-6, inverse_log_minus_digamma(jnp.log(precision) - log_precision))
    return NormalGamma(centre, 1 / spread, new_shape, new_shape / precision)


def inverse_log_minus_digamma(y: Array) -> Array:
    """x with log x - digamma(x) = y > 0: a rational start, then Newton steps on 1/x."""
    y = jnp.maximum(y, 1e-7)
    x = (1 + jnp.sqrt(1 + 4 * y / 3)) / (4 * y)
    for _ in range(3):
        error = jnp.log(x) - digamma(x) - y
        slope = 1 / x - polygamma(1, x)
        x = 1 / (1 / x + error / (x**2 * slope))
    return x
