"""What learners with twin critics share: they learn from batches of transitions, by whomever these were made."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from cdpo.dynamics.networks import MLP
from cdpo.dynamics.replay import Experience
from cdpo.solvers.base import Metrics, Objective, Size
from cdpo.solvers.critics import (
    Futures,
    bellman_target,
    critic_inputs,
    expanded_target,
    reward_range,
    same_values,
    twin_values,
)
from cdpo.solvers.learner import Learner, LearnerSettings
from cdpo.solvers.policy import Policy, entropy_range


@dataclass(frozen=True)
class TwinSettings(LearnerSettings, shares=("polyak",)):
    """How twin critics learn."""

    critic_steps: int = 1
    """Gradient steps of the critics in an update, each on a batch of its own, before one of the policy."""
    layer_norm: bool = False
    """Normalise the hidden layers of the critics."""
    polyak: float = 0.02
    """Share by which target critics approach the critics in an update."""


class OffPolicyLearner(Learner):
    """Learns by `update` on batches of the models' transitions.

    Its state has critics and targets with leading axes [models, 2], the scale of rewards by which critics see them
    divided, and the least and the largest mean reward of a step seen so far, zero among them.
    """

    @property
    def batches(self) -> int:
        """That an update takes."""
        return self.settings.critic_steps

    @abstractmethod
    def update(
        self,
        policy: Policy,
        state: Any,
        batches: Experience,
        objective: Objective,
        key: Array,
        ahead: Futures | None = None,
    ) -> tuple[Policy, Any, Metrics]:
        """Gradient steps of the critics on batches [K, M, B], then one of the policy.

        Targets are those of how the batches go on, where that is given.
        """

    def renormalised(self, state: Any, old: Policy, new: Policy, size: Size) -> Any:
        """The same values after the policy's normaliser changed and what is paid is of another `size`."""
        scale = jnp.maximum(size.reward, 1.0)
        critics, targets = (same_values(net, old, new, state.scale, scale) for net in (state.critics, state.targets))
        return state._replace(critics=critics, targets=targets, scale=scale)

    def beyond(self, state: Any, policy: Policy, states: Array) -> Array:
        """What follows states [M, B, d] if the policy's mode acts there, [M, B], by the lower of the target critics."""
        action = jnp.tanh(policy(states).mean)
        return state.scale * jnp.min(twin_values(state.targets, policy, states, action), axis=1)

    def _begun(self, policy: Policy, models: int, key: Array) -> dict[str, Any]:
        """What every state of such a learner has: untrained critics."""
        settings = self.settings
        count = models if settings.critic == "per-model" else 1
        sizes = (policy.inputs.mean.shape[-1] + policy.actions, *settings.hidden, 1)
        critics = MLP.create(key, sizes, (count, 2), activation="relu", layer_norm=settings.layer_norm)
        return {
            "critics": critics,
            "targets": critics,
            "scale": jnp.ones(()),
            "rewards": jnp.zeros(2),
            "log_multiplier": jnp.zeros(()),
            "critic_optimiser": self._network.init(eqx.filter(critics, eqx.is_array)),
            "policy_optimiser": self._network.init(eqx.filter(policy.net, eqx.is_array)),
        }

    def _criticised(
        self,
        policy: Policy,
        state: Any,
        batches: Experience,
        ahead: Futures | None,
        temperature: Array,
        discount: float,
        key: Array,
    ) -> tuple[Any, Experience, Metrics]:
        """With critics that took their steps; and the last batch [M, B], on which the policy takes its own."""
        if self.settings.critic == "pooled":
            batches = jax.tree.map(lambda x: x.reshape(x.shape[0], 1, -1, *x.shape[3:]), batches)
            ahead = jax.tree.map(lambda x: x.reshape(*x.shape[:3], 1, -1, *x.shape[5:]), ahead)
        rewards = reward_range(state.rewards, batches)
        # Q counts the entropy from the next step on: where there are only costs, it may be worth more than they are.
        entropy = policy.task.actions * jnp.asarray(entropy_range())
        bounds = (rewards / state.scale + temperature * discount * entropy) / (1 - discount)
        batches = batches._replace(reward=batches.reward / state.scale)
        # Neither policy nor target critics move during the critics' steps: one evaluation serves them all.
        given, expanded = (policy, state.targets), {}
        if ahead is None:
            target = bellman_target(*given, batches, temperature, bounds, key)
        else:
            ahead = ahead._replace(reward=ahead.reward / state.scale)
            target, length = expanded_target(*given, ahead, temperature, bounds, key)
            expanded = {"expanded": length}
        seen = critic_inputs(policy, batches.observation, batches.action)

        def step(carry: tuple[MLP, Any], data: tuple[Array, Array]) -> tuple[tuple[MLP, Any], Any]:
            critics, optimiser = carry
            seen, target = data

            def loss(critics: MLP) -> tuple[Array, Array]:
                value = critics(seen[:, None])[..., 0]
                return jnp.sum(jnp.mean((value - target[:, None]) ** 2, axis=(0, 2))), jnp.mean(value)

            metrics, gradient = eqx.filter_value_and_grad(loss, has_aux=True)(critics)
            change, optimiser = self._network.update(gradient, optimiser)
            return (eqx.apply_updates(critics, change), optimiser), metrics

        (critics, optimiser), (loss, value) = jax.lax.scan(
            step, (state.critics, state.critic_optimiser), (seen, target), unroll=True
        )
        polyak = self.settings.polyak
        targets = jax.tree.map(lambda new, old: polyak * new + (1 - polyak) * old, critics, state.targets)
        state = state._replace(critics=critics, targets=targets, rewards=rewards, critic_optimiser=optimiser)
        told = {"critic_loss": jnp.mean(loss), "value": jnp.mean(value) * state.scale, **expanded}
        return state, jax.tree.map(lambda leaf: leaf[-1], batches), told
