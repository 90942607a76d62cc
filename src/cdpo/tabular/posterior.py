"""The conjugate posterior over finite MDPs: Dirichlet dynamics, Normal-Gamma rewards for each (s, a, s')."""

from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from cdpo.errors import UserError
from cdpo.noise import fold
from cdpo.tabular.planning import Known, Model
from cdpo.tabular.samplers import dirichlet, student_t


@dataclass(frozen=True)
class Prior:
    """What is believed before any data, equal for every (s, a, s')."""

    concentration: float = 1.0
    """Dirichlet weight of each next state."""
    mean: float = 0.0
    """Normal-Gamma mu0: the expected reward."""
    strength: float = 4.0
    """Normal-Gamma lambda: how many observations the mean counts for."""
    shape: float = 3.0
    """Normal-Gamma alpha, of the reward's precision."""
    rate: float = 3.0
    """Normal-Gamma beta, of the reward's precision."""

    def __post_init__(self) -> None:
        """Reject values for which the densities do not exist."""
        for name in ("concentration", "strength", "rate"):
            if not getattr(self, name) > 0:
                raise UserError(f"prior {name} must be positive, not {getattr(self, name):g}")
        if not self.shape > 1:
            raise UserError(f"prior shape must be above 1, so that variances exist, not {self.shape:g}")


class Transitions(NamedTuple):
    """A batch of observed steps; `weight` is 0 for padding."""

    state: Array  # [B] int
    action: Array  # [B] int
    reward: Array  # [B]
    successor: Array  # [B] int
    weight: Array  # [B] 0 or 1


class NormalGamma(NamedTuple):
    """Parameters of mean and precision of a Gaussian; every field of the same shape."""

    mean: Array
    strength: Array
    shape: Array
    rate: Array

    @property
    def mean_variance(self) -> Array:
        """Variance of the unknown mean."""
        return self.rate / (self.strength * (self.shape - 1))

    def sample_mean(self, key: Array) -> Array:
        """A draw of each unknown mean, a Student t with 2 shape degrees of freedom."""
        noise = student_t(key, 2 * self.shape)
        return self.mean + noise * jnp.sqrt(self.rate / (self.shape * self.strength))


class Posterior(eqx.Module):
    """Sufficient statistics of all data, and the prior.

    The scatter is kept about the running mean: rewards near 1 have a variance of 1e-5 and less on the chain, which
    a float32 sum of squares would lose.
    """

    count: Array  # [S, A, S]
    average: Array  # [S, A, S], of the rewards seen
    scatter: Array  # [S, A, S], sum of squared distances from the average
    prior: Prior = eqx.field(static=True)

    @staticmethod
    def initial(states: int, actions: int, prior: Prior) -> "Posterior":
        """No data yet."""
        empty = jnp.zeros((states, actions, states))
        return Posterior(empty, empty, empty, prior)

    def update(self, batch: Transitions) -> "Posterior":
        """Add a batch of steps, merging means and scatters after Chan et al. (1979)."""
        cell = (batch.state, batch.action, batch.successor)
        empty = jnp.zeros_like(self.count)
        n = empty.at[cell].add(batch.weight)
        average = empty.at[cell].add(batch.weight * batch.reward) / jnp.maximum(n, 1)
        scatter = empty.at[cell].add(batch.weight * (batch.reward - average[cell]) ** 2)
        total = jnp.maximum(self.count + n, 1)
        shift = average - self.average
        return Posterior(
            self.count + n,
            self.average + shift * n / total,
            self.scatter + scatter + shift**2 * self.count * n / total,
            self.prior,
        )

    @property
    def concentration(self) -> Array:
        """Dirichlet parameters, [S, A, S]."""
        return self.prior.concentration + self.count

    @property
    def rewards(self) -> NormalGamma:
        """Normal-Gamma parameters, each [S, A, S]."""
        prior, n = self.prior, self.count
        strength = prior.strength + n
        return NormalGamma(
            mean=(prior.strength * prior.mean + n * self.average) / strength,
            strength=strength,
            shape=prior.shape + n / 2,
            rate=prior.rate + self.scatter / 2 + prior.strength * n * (self.average - prior.mean) ** 2 / (2 * strength),
        )

    @property
    def transition(self) -> Array:
        """Posterior mean of the dynamics, [S, A, S]."""
        concentration = self.concentration
        return concentration / jnp.sum(concentration, axis=-1, keepdims=True)

    def mean(self, known: Known) -> Model:
        """The posterior-mean model."""
        return Model.build(self.transition, self.rewards.mean, known)

    def least_squares(self, known: Known) -> Model:
        """Empirical frequencies and averages; where nothing was seen, the prior's mean."""
        visits = jnp.sum(self.count, axis=-1, keepdims=True)
        frequency = jnp.where(visits > 0, self.count / jnp.maximum(visits, 1), self.transition)
        return Model.build(frequency, jnp.where(self.count > 0, self.average, self.prior.mean), known)

    def sample(self, known: Known, key: Array) -> Model:
        """A model drawn from the posterior; `jax.vmap` over keys gives a set."""
        transition = dirichlet(fold(key, 0), self.concentration, smallest=self.prior.concentration)
        return Model.build(transition, self.rewards.sample_mean(fold(key, 1)), known)

    def sample_set(self, known: Known, key: Array, models: int) -> Model:
        """Several models, with a leading axis."""
        keys = jax.vmap(lambda index: fold(key, index))(jnp.arange(models))
        return jax.vmap(lambda k: self.sample(known, k))(keys)
