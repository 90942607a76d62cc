"""Maximum a posteriori policy optimisation (Abdolmaleki et al. 2018)."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from cdpo.dynamics.networks import MLP, rescale_inputs
from cdpo.dynamics.replay import Experience
from cdpo.solvers.base import Metrics, Objective, Size
from cdpo.solvers.critics import Futures, by_model, twin_values
from cdpo.solvers.offpolicy import OffPolicyLearner, TwinSettings
from cdpo.solvers.policy import Gaussian, Policy, kl_divergence, log_density

_LEAST = 10.0  # weight of the squared distance to the logarithm of the least deviation


@dataclass(frozen=True)
class MPOSettings(TwinSettings):
    """The learner mpo."""

    part: ClassVar[str] = "mpo"

    samples: int = 16
    """Actions that are weighed against each other at a state."""
    period: int = 20
    """Updates after which the policy that proposes them becomes the learned one."""
    kl: float = 0.1
    """How far the weighed actions may be from those proposed, on average over states."""
    mean_kl: float = 0.03
    """How far the means may move from those of the proposing policy."""
    deviation_kl: float = 0.003
    """How far the deviations may."""
    weight_rate: float = 0.1
    """Of the logarithms of the weights that hold these two, per update and excess."""
    temperature_rate: float = 1e-2
    """Of the logarithm of the temperature that holds the first."""
    temperature: float = 1.0
    """At the beginning."""
    deviation: float = 0.2
    """Least standard deviation of every part of an action, before squashing."""


class MPOState(NamedTuple):
    """What the learner remembers."""

    critics: MLP
    targets: MLP
    scale: Array
    rewards: Array
    proposing: MLP  # of the policy whose actions are weighed
    updates: Array  # int32, since it was the learned one
    log_temperature: Array
    log_weights: Array  # [2], of the movements of means and deviations
    log_multiplier: Array
    critic_optimiser: Any
    policy_optimiser: Any
    temperature_optimiser: Any


class MPO(OffPolicyLearner):
    """Weighs actions by their values, and fits the policy to them with means and deviations held apart."""

    settings: MPOSettings

    @property
    def _temperature(self) -> optax.GradientTransformation:
        return optax.adam(self.settings.temperature_rate)

    def begin(self, policy: Policy, models: int, key: Array) -> MPOState:
        """Untrained critics."""
        log_temperature = jnp.log(jnp.asarray(self.settings.temperature))
        return MPOState(
            **self._begun(policy, models, key),
            proposing=policy.net,
            updates=jnp.zeros((), jnp.int32),
            log_temperature=log_temperature,
            log_weights=jnp.zeros(2),
            temperature_optimiser=self._temperature.init(log_temperature),
        )

    def renormalised(self, state: MPOState, old: Policy, new: Policy, size: Size) -> MPOState:
        """The same values and proposals after the policy's normaliser changed and what is paid is of another `size`."""
        state = super().renormalised(state, old, new, size)
        return state._replace(proposing=rescale_inputs(state.proposing, old.inputs, new.inputs))

    def fresh(self, policy: Policy, state: MPOState) -> MPOState:
        """At the beginning of another problem: the policy proposes as it is."""
        return super().fresh(policy, state)._replace(proposing=policy.net, updates=jnp.zeros((), jnp.int32))

    def update(
        self,
        policy: Policy,
        state: MPOState,
        batches: Experience,
        objective: Objective,
        key: Array,
        ahead: Futures | None = None,
    ) -> tuple[Policy, MPOState, Metrics]:
        """Gradient steps of the critics on batches [K, M, B], then one of policy, temperature, weights, multiplier."""
        settings = self.settings
        first, second, third = jax.random.split(key, 3)
        state, batch, metrics = self._criticised(
            policy, state, batches, ahead, jnp.zeros(()), objective.discount, first
        )
        proposing = eqx.tree_at(lambda p: p.net, policy, state.proposing)
        old = proposing(batch.observation)
        noise = jax.random.normal(second, (settings.samples, *old.mean.shape))
        raw = old.mean + jnp.exp(old.log_deviation) * noise
        places = jnp.broadcast_to(batch.observation, (settings.samples, *batch.observation.shape))
        value = jnp.min(twin_values(state.critics, policy, by_model(places), by_model(jnp.tanh(raw))), axis=1)
        value = jnp.moveaxis(value.reshape(value.shape[0], settings.samples, -1), 0, 1)  # [samples, M, B]
        share = jax.nn.softmax(value / jnp.exp(state.log_temperature), axis=0)
        weights = jnp.exp(state.log_weights)

        def loss(acting: Policy, here: Gaussian) -> tuple[Array, tuple[Array, Array]]:
            # Each half of the new policy with the other half of the old one: what one fits, the other cannot spoil.
            halves = Gaussian(here.mean, old.log_deviation), Gaussian(old.mean, here.log_deviation)
            fit = sum(jnp.mean(jnp.sum(share * log_density(half, raw), axis=0)) for half in halves)
            moved = jnp.stack([jnp.mean(kl_divergence(old, half)) for half in halves])
            lacking = jnp.maximum(jnp.log(settings.deviation) - here.log_deviation, 0.0)
            return weights @ moved + _LEAST * jnp.mean(lacking**2) - fit, (jnp.mean(here.log_deviation), moved)

        policy, state, (deviation, moved), multiplier = self._climbed(
            policy, state, batch.observation, loss, objective.trust, third
        )
        slope = jax.grad(lambda log: temperature_dual(jnp.exp(log), value, settings.kl))(state.log_temperature)
        change, optimiser = self._temperature.update(slope, state.temperature_optimiser)
        excess = jnp.clip(moved / jnp.stack([settings.mean_kl, settings.deviation_kl]) - 1, -1.0, 1.0)
        due = state.updates + 1 >= settings.period
        state = state._replace(
            proposing=jax.tree.map(lambda new, old: jnp.where(due, new, old), policy.net, state.proposing),
            updates=jnp.where(due, 0, state.updates + 1),
            log_temperature=optax.apply_updates(state.log_temperature, change),
            log_weights=jnp.clip(state.log_weights + settings.weight_rate * excess, -7.0, 7.0),
            temperature_optimiser=optimiser,
        )
        told = {"log_deviation": deviation, "temperature": jnp.exp(state.log_temperature), "multiplier": multiplier}
        told |= {"mean_kl": moved[0], "deviation_kl": moved[1]}
        return policy, state, metrics | told


def temperature_dual(temperature: Array, value: Array, bound: Array | float) -> Array:
    """Convex; least at the temperature whose shares of values [samples, ...] are `bound` in KL from equal ones."""
    mean = jax.nn.logsumexp(value / temperature, axis=0) - jnp.log(value.shape[0])
    return temperature * (bound + jnp.mean(mean))
