"""Soft actor-critic (Haarnoja et al. 2018) as a learner on imagined data, with a critic for each model."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from cdpo.dynamics.networks import MLP, rescale_inputs
from cdpo.dynamics.replay import Experience
from cdpo.errors import UserError, check_choices
from cdpo.solvers.base import Metrics, Objective
from cdpo.solvers.policy import Gaussian, Policy, counted, kl_divergence, squashed
from cdpo.told import Told

_WATCHED = 128  # states of the trust region in a gradient step


@dataclass(frozen=True)
class SACSettings(Told):
    """The learner."""

    hidden: tuple[int, ...] = (64, 64)
    """Hidden layers of policy and critics."""
    critic: Literal["per-model", "pooled"] = "per-model"
    """A critic for each sampled model, whose mean is the objective; or one on the data of all models."""
    critic_steps: int = 1
    """Gradient steps of the critics in an update, each on a batch of its own, before one of the policy."""
    layer_norm: bool = False
    """Normalise the hidden layers of the critics."""
    learning_rate: float = 1e-3
    """Of policy and critics."""
    temperature_rate: float = 3e-4
    """Of the logarithm of the entropy's weight."""
    temperature: float = 0.1
    """The entropy's weight at the beginning."""
    holds: Literal["deviation", "entropy"] = "deviation"
    """What the entropy's weight holds: the deviation below, or minus the number of actions as the entropy, as the
    authors of SAC do."""
    deviation: float = 0.2
    """Standard deviation of actions, before squashing, that is held on (geometric) average."""
    polyak: float = 0.02
    """Share by which target critics approach the critics in an update."""
    multiplier_rate: float = 0.1
    """Of the logarithm of the trust region's multiplier, per update and excess."""

    def __post_init__(self) -> None:
        """Reject settings outside their range."""
        check_choices(self)
        if self.critic_steps < 1:
            raise UserError(f"sac.critic_steps must be at least 1, not {self.critic_steps}")
        for name in ("learning_rate", "temperature_rate", "temperature", "deviation", "multiplier_rate"):
            if not getattr(self, name) > 0:
                raise UserError(f"sac.{name} must be above 0, not {getattr(self, name):g}")
        if not 0 < self.polyak <= 1:
            raise UserError(f"sac.polyak must be in (0, 1], not {self.polyak:g}")


class SACState(NamedTuple):
    """What the learner remembers."""

    critics: MLP  # leading axes [models, 2]
    targets: MLP
    scale: Array  # of rewards: critics see them divided by it
    rewards: Array  # [2], the least and the largest mean reward of a step seen so far, zero among them
    log_temperature: Array
    log_multiplier: Array
    critic_optimiser: Any
    policy_optimiser: Any
    temperature_optimiser: Any


class SAC(NamedTuple):
    """A learner: `begin` once, `fresh` before each problem, then `update` on batches of the models' transitions."""

    settings: SACSettings

    @property
    def batches(self) -> int:
        """That an update takes."""
        return self.settings.critic_steps

    @property
    def _network(self) -> optax.GradientTransformation:
        return optax.adam(self.settings.learning_rate)

    @property
    def _temperature(self) -> optax.GradientTransformation:
        return optax.adam(self.settings.temperature_rate)

    def begin(self, policy: Policy, models: int, key: Array) -> SACState:
        """Untrained critics."""
        settings = self.settings
        count = models if settings.critic == "per-model" else 1
        sizes = (policy.inputs.mean.shape[-1] + policy.actions, *settings.hidden, 1)
        critics = MLP.create(key, sizes, (count, 2), activation="relu", layer_norm=settings.layer_norm)
        log_temperature = jnp.log(jnp.asarray(settings.temperature))
        return SACState(
            critics,
            critics,
            jnp.ones(()),
            jnp.zeros(2),
            log_temperature,
            jnp.zeros(()),
            self._network.init(eqx.filter(critics, eqx.is_array)),
            self._network.init(eqx.filter(policy.net, eqx.is_array)),
            self._temperature.init(log_temperature),
        )

    def renormalised(self, state: SACState, old: Policy, new: Policy, reward: Array) -> SACState:
        """The same values after the policy's normaliser changed and rewards are of the size `reward`."""
        scale = jnp.maximum(reward, 1.0)
        critics, targets = (same_values(net, old, new, state.scale, scale) for net in (state.critics, state.targets))
        return state._replace(critics=critics, targets=targets, scale=scale)

    def fresh(self, policy: Policy, state: SACState) -> SACState:
        """At the beginning of another problem, whose gradients may be of quite another size for the policy."""
        return state._replace(policy_optimiser=self._network.init(eqx.filter(policy.net, eqx.is_array)))

    def update(
        self, policy: Policy, state: SACState, batches: Experience, objective: Objective, key: Array
    ) -> tuple[Policy, SACState, Metrics]:
        """Gradient steps of the critics on batches [K, M, B], then one of policy, temperature and multiplier."""
        if self.settings.critic == "pooled":
            batches = jax.tree.map(lambda x: x.reshape(x.shape[0], 1, -1, *x.shape[3:]), batches)
        first, second, third = jax.random.split(key, 3)
        temperature = jnp.exp(state.log_temperature)
        rewards = reward_range(state.rewards, batches)
        bounds = rewards / (1 - objective.discount) / state.scale
        batches = batches._replace(reward=batches.reward / state.scale)
        # Neither policy nor target critics move during the critics' steps: one evaluation serves them all.
        target = bellman_target(policy, state.targets, batches, temperature, bounds, first)
        seen = critic_inputs(policy, batches.observation, batches.action)

        def critic_step(carry: tuple[MLP, Any], data: tuple[Array, Array]) -> tuple[tuple[MLP, Any], Any]:
            critics, optimiser = carry
            seen, target = data

            def loss(critics: MLP) -> tuple[Array, Array]:
                value = critics(seen[:, None])[..., 0]
                return jnp.sum(jnp.mean((value - target[:, None]) ** 2, axis=(0, 2))), jnp.mean(value)

            metrics, gradient = eqx.filter_value_and_grad(loss, has_aux=True)(critics)
            change, optimiser = self._network.update(gradient, optimiser)
            return (eqx.apply_updates(critics, change), optimiser), metrics

        (critics, critic_optimiser), (loss, value) = jax.lax.scan(
            critic_step, (state.critics, state.critic_optimiser), (seen, target), unroll=True
        )
        batch = jax.tree.map(lambda leaf: leaf[-1], batches)

        trust = objective.trust
        watched, chosen = trust.some_watched(third, _WATCHED)
        multiplier = trust.multiplier(state.log_multiplier)

        def policy_loss(net: MLP) -> tuple[Array, tuple[Array, Array, Array]]:
            acting = eqx.tree_at(lambda p: p.net, policy, net)
            # One evaluation for the batch and the watched states: on an accelerator small products cost as large ones.
            everywhere = acting(jnp.concatenate([batch.observation.reshape(-1, watched.shape[-1]), watched]))
            rows = batch.reward.size
            here = Gaussian(*(part[:rows].reshape(*batch.reward.shape, -1) for part in everywhere))
            there = Gaussian(*(part[rows:] for part in everywhere))
            action, density = squashed(here, second)
            gain = jnp.min(values(critics, acting, batch.observation, action), axis=1)
            spent = jnp.mean(counted(kl_divergence(there, chosen)))
            # Each model's value is climbed on that model's own states: the gradient of the mean of the values.
            loss = jnp.mean(temperature * density - gain)
            # Of the same size whatever the multiplier is.
            seen = jnp.mean(here.log_deviation), -jnp.mean(density), spent
            return (loss + multiplier * spent) / (1 + multiplier), seen

        (_, (noise, entropy, spent)), gradient = eqx.filter_value_and_grad(policy_loss, has_aux=True)(policy.net)
        change, policy_optimiser = self._network.update(gradient, state.policy_optimiser)
        policy = eqx.tree_at(lambda p: p.net, policy, eqx.apply_updates(policy.net, change))

        # Too little noise: more weight. The logarithm of the weight itself takes the step.
        by_entropy = self.settings.holds == "entropy"
        slack = entropy + policy.actions if by_entropy else noise - jnp.log(self.settings.deviation)
        change, temperature_optimiser = self._temperature.update(slack, state.temperature_optimiser)
        log_temperature = optax.apply_updates(state.log_temperature, change)

        polyak = self.settings.polyak
        targets = jax.tree.map(lambda new, old: polyak * new + (1 - polyak) * old, critics, state.targets)
        state = SACState(
            critics,
            targets,
            state.scale,
            rewards,
            log_temperature,
            trust.adapted(state.log_multiplier, spent, self.settings.multiplier_rate),
            critic_optimiser,
            policy_optimiser,
            temperature_optimiser,
        )
        metrics = {
            "critic_loss": jnp.mean(loss),
            "value": jnp.mean(value) * state.scale,
            "log_deviation": noise,
            "temperature": temperature,
            "multiplier": multiplier,
        }
        return policy, state, metrics


def same_values(critics: MLP, old: Policy, new: Policy, before: Array, after: Array) -> MLP:
    """Critics that say the same once they see what `new` sees, and rewards in units of `after`."""
    critics = rescale_inputs(critics, old.inputs, new.inputs)
    last = jax.tree.map(lambda leaf: leaf * before / after, (critics.weights[-1], critics.biases[-1]))
    return eqx.tree_at(lambda n: (n.weights[-1], n.biases[-1]), critics, last)


def critic_inputs(policy: Policy, observation: Array, action: Array) -> Array:
    """What critics see."""
    return jnp.concatenate([policy.inputs(policy.task.features(observation)), action], axis=-1)


def values(critics: MLP, policy: Policy, observation: Array, action: Array) -> Array:
    """Q of both twins of each model on its own batch, [M, B] -> [M, 2, B]."""
    return critics(critic_inputs(policy, observation, action)[:, None])[..., 0]


def reward_range(known: Array, batches: Experience) -> Array:
    """`known` [2], widened by the mean rewards per step of batches."""
    mean = batches.reward / batches.steps
    return jnp.stack([jnp.minimum(known[0], jnp.min(mean)), jnp.maximum(known[1], jnp.max(mean))])


def bellman_target(
    policy: Policy, targets: MLP, batches: Experience, temperature: Array, bounds: Array, key: Array
) -> Array:
    """r + discount * (min Q - temperature * log pi) of the next state, [K, M, B]; nothing follows a termination.

    Q is kept within `bounds` [2], what rewards can add up to: beyond lies only the divergence of bootstrapping. The
    entropy still to come is clipped with it; that of the next step is not.
    """
    action, density = policy.sample(batches.next, key)
    by_model = jax.tree.map(_by_model, (batches.next, action))
    following = jnp.min(values(targets, policy, *by_model), axis=1)
    following = jnp.moveaxis(following.reshape(density.shape[1], density.shape[0], -1), 1, 0)
    following = jnp.clip(following, bounds[0], bounds[1]) - temperature * density
    return batches.reward + batches.discount * following


def _by_model(batches: Array) -> Array:
    """[K, M, B, ...] -> [M, K * B, ...]."""
    return jnp.moveaxis(batches, 0, 1).reshape(batches.shape[1], -1, *batches.shape[3:])
