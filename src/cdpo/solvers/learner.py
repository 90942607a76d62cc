"""Learners: what improves a policy on transitions, wherever these come from. None of them knows of models."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import equinox as eqx
import jax.numpy as jnp
import optax
from jax import Array

from cdpo.dynamics.networks import MLP
from cdpo.solvers.base import Size, Trust
from cdpo.solvers.policy import Gaussian, Policy, mean_divergence
from cdpo.told import Told

PolicyLoss = Callable[[Policy, Gaussian], tuple[Array, Any]]


@dataclass(frozen=True)
class LearnerSettings(Told):
    """What every learner is told."""

    hidden: tuple[int, ...] = (64, 64)
    """Hidden layers of policy and critics."""
    critic: Literal["per-model", "pooled"] = "per-model"
    """A critic for each sampled model, whose mean is the objective; or one on the data of all models."""
    learning_rate: float = 1e-3
    """Of policy and critics."""
    multiplier_rate: float = 0.1
    """Of the logarithm of the trust region's multiplier, per gradient step of the policy and excess."""


class Learner(eqx.Module):
    """`begin` once, `fresh` before each problem; then it learns, in the way of its kind."""

    settings: eqx.AbstractVar[Any]

    @abstractmethod
    def begin(self, policy: Policy, models: int, key: Array) -> Any:
        """The state before any data. Every learner's has the `policy_optimiser` and the `log_multiplier`."""

    @abstractmethod
    def renormalised(self, state: Any, old: Policy, new: Policy, size: Size) -> Any:
        """The same values after the policy's normaliser changed and what is paid is of another `size`."""

    @abstractmethod
    def beyond(self, state: Any, policy: Policy, states: Array) -> Array:
        """What follows states [M, B, d] if the policy acts there, [M, B], each by the critics of its model."""

    def fresh(self, policy: Policy, state: Any) -> Any:
        """At the beginning of another problem, whose gradients may be of quite another size for the policy."""
        return state._replace(policy_optimiser=self._network.init(eqx.filter(policy.net, eqx.is_array)))

    @property
    def _network(self) -> optax.GradientTransformation:
        return optax.adam(self.settings.learning_rate)

    def _climbed(
        self,
        policy: Policy,
        state: Any,
        observation: Array,
        loss: PolicyLoss,
        trust: Trust,
        key: Array,
    ) -> tuple[Policy, Any, Any, Array]:
        """One gradient step of the policy and one of the multiplier; with what the loss told, and the multiplier."""
        lagrangian, multiplier = self._lagrangian(policy, state, observation, loss, trust, key)
        (_, (told, spent)), gradient = eqx.filter_value_and_grad(lagrangian, has_aux=True)(policy.net)
        change, optimiser = self._network.update(gradient, state.policy_optimiser)
        policy = eqx.tree_at(lambda p: p.net, policy, eqx.apply_updates(policy.net, change))
        log_multiplier = trust.adapted(state.log_multiplier, spent, self.settings.multiplier_rate)
        return policy, state._replace(policy_optimiser=optimiser, log_multiplier=log_multiplier), told, multiplier

    def _lagrangian(
        self, policy: Policy, state: Any, observation: Array, loss: PolicyLoss, trust: Trust, key: Array
    ) -> tuple[Callable[[MLP], tuple[Array, tuple[Any, Array]]], Array]:
        """What is descended, as a function of the policy's network, with what it tells and spends; and the multiplier.

        The loss is one of a policy and what it does at the observations [..., d].
        """
        watched, chosen = trust.some_watched(key)
        multiplier = trust.multiplier(state.log_multiplier)

        def lagrangian(net: MLP) -> tuple[Array, tuple[Any, Array]]:
            acting = eqx.tree_at(lambda p: p.net, policy, net)
            # One evaluation for the batch and the watched states: on an accelerator small products cost as large ones.
            everywhere = acting(jnp.concatenate([observation.reshape(-1, watched.shape[-1]), watched]))
            shape = observation.shape[:-1]
            rows = everywhere.mean.shape[0] - watched.shape[0]
            here = Gaussian(*(part[:rows].reshape(*shape, -1) for part in everywhere))
            there = Gaussian(*(part[rows:] for part in everywhere))
            value, told = loss(acting, here)
            spent = mean_divergence(there, chosen)
            return trust.lagrangian(value, spent, multiplier), (told, spent)

        return lagrangian, multiplier
