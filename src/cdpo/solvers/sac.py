"""Soft actor-critic (Haarnoja et al. 2018)."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from cdpo.dynamics.networks import MLP
from cdpo.dynamics.replay import Experience
from cdpo.solvers.base import Metrics, Objective
from cdpo.solvers.critics import Futures, twin_values
from cdpo.solvers.offpolicy import OffPolicyLearner, TwinSettings
from cdpo.solvers.policy import Gaussian, Policy, squashed


@dataclass(frozen=True)
class SACSettings(TwinSettings):
    """The learner sac."""

    part: ClassVar[str] = "sac"

    temperature_rate: float = 3e-4
    """Of the logarithm of the entropy's weight."""
    temperature: float = 0.1
    """The entropy's weight at the beginning."""
    holds: Literal["deviation", "entropy"] = "deviation"
    """What the entropy's weight holds: the deviation of actions or, as the authors of SAC do, their entropy."""
    deviation: float = 0.2
    """Standard deviation of actions, before squashing, that is held on (geometric) average."""
    negentropy: float = 1.0
    """Minus the entropy, after squashing, that is held for each part of an action."""


class SACState(NamedTuple):
    """What the learner remembers."""

    critics: MLP
    targets: MLP
    scale: Array
    rewards: Array
    log_temperature: Array
    log_multiplier: Array
    critic_optimiser: Any
    policy_optimiser: Any
    temperature_optimiser: Any


class SAC(OffPolicyLearner):
    """Climbs the critics' values and the entropy of its actions."""

    settings: SACSettings

    @property
    def _temperature(self) -> optax.GradientTransformation:
        return optax.adam(self.settings.temperature_rate)

    def begin(self, policy: Policy, models: int, key: Array) -> SACState:
        """Untrained critics."""
        log_temperature = jnp.log(jnp.asarray(self.settings.temperature))
        return SACState(
            **self._begun(policy, models, key),
            log_temperature=log_temperature,
            temperature_optimiser=self._temperature.init(log_temperature),
        )

    def update(
        self,
        policy: Policy,
        state: SACState,
        batches: Experience,
        objective: Objective,
        key: Array,
        ahead: Futures | None = None,
    ) -> tuple[Policy, SACState, Metrics]:
        """Gradient steps of the critics on batches [K, M, B], then one of policy, temperature and multiplier."""
        first, second, third = jax.random.split(key, 3)
        temperature = jnp.exp(state.log_temperature)
        state, batch, metrics = self._criticised(policy, state, batches, ahead, temperature, objective.discount, first)

        parts = policy.task.actions

        def loss(acting: Policy, here: Gaussian) -> tuple[Array, tuple[Array, Array]]:
            action, density = squashed(here, second, parts)
            # With a critic for each model, each is climbed on its model's own states: the mean of the values.
            gain = jnp.min(twin_values(state.critics, acting, batch.observation, action), axis=1)
            noise = jnp.mean(here.log_deviation[..., :parts])
            return jnp.mean(temperature * density - gain), (noise, -jnp.mean(density))

        policy, state, (noise, entropy), multiplier = self._climbed(
            policy, state, batch.observation, loss, objective.trust, third
        )
        # Too little noise: more weight. The logarithm of the weight itself takes the step.
        by_entropy = self.settings.holds == "entropy"
        slack = entropy + parts * self.settings.negentropy if by_entropy else noise - jnp.log(self.settings.deviation)
        change, optimiser = self._temperature.update(slack, state.temperature_optimiser)
        log_temperature = optax.apply_updates(state.log_temperature, change)
        state = state._replace(log_temperature=log_temperature, temperature_optimiser=optimiser)
        told = {"log_deviation": noise, "entropy": entropy, "temperature": temperature, "multiplier": multiplier}
        return policy, state, metrics | told
