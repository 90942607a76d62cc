"""Values of states along imagined rollouts: critics, and the returns that they learn."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from cdpo.dynamics.models import ModelSet
from cdpo.dynamics.networks import MLP
from cdpo.solvers.base import Metrics, Size
from cdpo.solvers.critics import same_values, state_values, traced, widened
from cdpo.solvers.policy import Policy, counted, kl_divergence, squashed
from cdpo.told import Told


@dataclass(frozen=True)
class CriticSettings(Told, zero=("trace",), shares=("trace", "polyak")):
    """How values of states are learned beside a policy; solvers that do so have it in their settings."""

    hidden: tuple[int, ...] = (64, 64)
    """Hidden layers of policy and critics."""
    learning_rate: float = 1e-3
    """Of policy and critics."""
    critic_steps: int = 4
    """Gradient steps of the critics after each of the policy, on rollouts of that policy."""
    critic: Literal["per-model", "pooled"] = "per-model"
    """A critic for each sampled model, whose mean is the objective; or one on the rollouts of all models."""
    layer_norm: bool = False
    """Normalise the hidden layers of the critics."""
    trace: float = 0.8
    """Share of the longer returns in what is aimed at: 0 for one step, 1 for the whole rollout."""
    polyak: float = 0.05
    """Share by which target critics approach the critics after each step of the policy."""

    @property
    def descent(self) -> optax.GradientTransformation:
        """Of the critics."""
        return optax.adam(self.learning_rate)


class Path(NamedTuple):
    """Rollouts of H steps on M models, P on each. What follows a termination is zero."""

    states: Array  # [H + 1, M, P, d]; a particle that has ended rests
    alive: Array  # [H + 1, M, P], 1.0 until the task ends
    reward: Array  # [H, M, P]
    kl: Array  # [H, M, P], to another policy, as `counted`
    log_deviation: Array  # [H, M, P, m]

    def average(self, quantity: Array, discount: float) -> Array:
        """Mean of [H, M, P] over the states before an end, by their discounted weight."""
        weight = discounts(self.reward.shape[0], discount) * self.alive[:-1]
        return jnp.sum(weight * quantity) / jnp.sum(weight)


class Critics(NamedTuple):
    """Values of states, of rewards divided by their size; for each model those on its own rollouts, or one for all."""

    nets: MLP  # leading axis [M], or [1] where one is for all
    targets: MLP
    optimiser: Any

    @classmethod
    def create(cls, policy: Policy, models: int, settings: CriticSettings, key: Array) -> Self:
        """Untrained."""
        sizes = (policy.inputs.mean.shape[-1], *settings.hidden, 1)
        count = models if settings.critic == "per-model" else 1
        nets = MLP.create(key, sizes, (count,), layer_norm=settings.layer_norm)
        return cls(nets, nets, settings.descent.init(eqx.filter(nets, eqx.is_array)))

    def renormalised(self, old: Policy, new: Policy, before: Array, after: Array) -> Self:
        """The same values after the policy's normaliser changed, and the size of rewards."""
        nets, targets = (same_values(net, old, new, before, after) for net in (self.nets, self.targets))
        return self._replace(nets=nets, targets=targets)

    def fitted(self, policy: Policy, path: Path, returns: Array, settings: CriticSettings) -> tuple[Self, Metrics]:
        """After some steps towards the returns [H, M, P] of rollouts."""

        def loss(nets: MLP) -> tuple[Array, Array]:
            value = state_values(nets, policy, path.states[:-1])
            error = path.alive[:-1] * (value - returns) ** 2
            return jnp.sum(jnp.mean(error, axis=(0, 2))), jnp.mean(value)

        def step(carry: tuple[MLP, Any], _: None) -> tuple[tuple[MLP, Any], tuple[Array, Array]]:
            nets, optimiser = carry
            told, gradient = eqx.filter_value_and_grad(loss, has_aux=True)(nets)
            change, optimiser = settings.descent.update(gradient, optimiser)
            return (eqx.apply_updates(nets, change), optimiser), told

        (nets, optimiser), (error, value) = jax.lax.scan(
            step, (self.nets, self.optimiser), length=settings.critic_steps
        )
        share = settings.polyak
        targets = jax.tree.map(lambda new, old: share * new + (1 - share) * old, nets, self.targets)
        told = {"critic_loss": error[0] / returns.shape[1], "value": value[0]}
        return self._replace(nets=nets, targets=targets, optimiser=optimiser), told


class Memory(NamedTuple):
    """What a solver remembers that learns values of states. Its policy's optimiser begins anew with every update."""

    critics: Critics | None  # None where rollouts are worth their rewards alone
    scale: Array  # of rewards: values are of rewards divided by it
    log_multiplier: Array  # of the trust region
    bounds: Array  # [2], of values: what rewards seen in rollouts can add up to; beyond, only bootstrapping diverges

    @classmethod
    def create(cls, critics: Critics | None) -> Self:
        """Before any update."""
        return cls(critics, jnp.ones(()), jnp.zeros(()), jnp.zeros(2))

    def renormalised(self, old: Policy, new: Policy, size: Size) -> Self:
        """The same after the policy's normaliser changed and what is paid is of another `size`."""
        scale = jnp.maximum(size.reward, 1.0)
        critics = None if self.critics is None else self.critics.renormalised(old, new, self.scale, scale)
        return self._replace(critics=critics, scale=scale)

    def having_seen(self, path: Path, discount: float) -> Self:
        """With bounds that the rewards of rollouts widened."""
        return self._replace(bounds=widened(self.bounds, jax.lax.stop_gradient(path.reward) / (1 - discount)))

    def fitted(self, policy: Policy, path: Path, returns: Array, settings: CriticSettings) -> tuple[Self, Metrics]:
        """With critics, if there are any, that took some steps towards the returns of rollouts."""
        if self.critics is None:
            return self, {}
        critics, told = self.critics.fitted(policy, path, returns, settings)
        return self._replace(critics=critics), told | {"value": told["value"] * self.scale}

    def beyond(self, policy: Policy, states: Array) -> Array | None:
        """What follows states [M, B, d] on their models, [M, B]; None where nothing was learned of that."""
        if self.critics is None:
            return None
        value = state_values(self.critics.targets, policy, states[None])[0]
        return jnp.clip(self.scale * value, self.bounds[0], self.bounds[1])

    def returns(self, path: Path, policy: Policy, discount: float, trace: float) -> Array:
        """From each step on, of rewards divided by their size, [H, M, P]; without critics those of rewards alone."""
        reward, alive = path.reward / self.scale, path.alive[1:]
        if self.critics is None:
            return traced(reward, alive, jnp.zeros_like(reward), discount, 1.0)
        later = state_values(self.critics.targets, policy, path.states[1:])
        return traced(reward, alive, jnp.clip(later, *(self.bounds / self.scale)), discount, trace)


def roll_out(policy: Policy, centre: Policy, models: ModelSet, begin: Array, key: Array, horizon: int) -> Path:
    """From states [M, P, d], and how far the policy is from `centre` on the way.

    For the way back only products are kept, and the rest is computed again: half the memory, in the same time.
    """

    def step(carry: tuple[Array, Array], key: Array) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
        observation, alive = carry
        act, move = jax.random.split(key)
        before = policy(observation)
        action, _ = squashed(before, act, policy.task.actions)
        following, reward, terminated = models.step(observation, action, move)
        kl = counted(kl_divergence(before, centre(observation)))
        after = alive * (1 - terminated)
        carried = jnp.where(after[..., None] > 0, following, jax.lax.stop_gradient(observation))
        reward, kl = (jnp.where(alive > 0, each, 0.0) for each in (reward, kl))
        log_deviation = jnp.where(alive[..., None] > 0, before.log_deviation, 0.0)
        return (carried, after), (carried, after, reward, kl, log_deviation)

    step = jax.checkpoint(step, policy=jax.checkpoint_policies.dots_saveable, prevent_cse=False)
    alive = jnp.ones(begin.shape[:-1])
    _, (states, lives, *seen) = jax.lax.scan(step, (begin, alive), jax.random.split(key, horizon))
    states, lives = (jnp.concatenate([first[None], rest]) for first, rest in ((begin, states), (alive, lives)))
    return Path(states, lives, *seen)


def discounts(horizon: int, discount: float) -> Array:
    """Weights of steps, [H, 1, 1]."""
    return (discount ** jnp.arange(horizon))[:, None, None]
