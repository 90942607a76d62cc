"""Back-propagation through time: the return of imagined rollouts, differentiated through models and policy."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from cdpo.dynamics.models import ModelSet
from cdpo.dynamics.networks import MLP
from cdpo.errors import UserError, check_choices
from cdpo.solvers.base import Metrics, Objective, Starts, StartSettings, step_back
from cdpo.solvers.critics import same_values, state_values, traced
from cdpo.solvers.policy import Policy, counted, kl_divergence, squashed

_WATCHED = 128  # states of the trust region in a gradient step
_PARTS = 10  # of an update; metrics are means over the last of them
_HELD = 1.0  # weight of the squared distance to the logarithm of the deviation that is to be held
_HORIZON = {"maac": 10, "svg": 60}


@dataclass(frozen=True)
class BPTTSettings(StartSettings):
    """How far is differentiated, on how many rollouts, and in which steps."""

    part: ClassVar[str] = "bptt"

    kind: Literal["maac", "svg"] = "maac"
    """What a rollout is worth: its rewards and a learned value of where it ends (maac), or its rewards alone (svg)."""
    horizon: int | None = None
    """Steps of a rollout; if not given 10 for maac and 60 for svg."""
    particles: int = 32
    """Rollouts of each model in a gradient step."""
    updates: int = 200
    """Gradient steps of the policy in one update."""
    hidden: tuple[int, ...] = (64, 64)
    """Hidden layers of policy and critics."""
    learning_rate: float = 1e-3
    """Of policy and critics."""
    clip: float = 1.0
    """Largest norm of a policy's gradient; a longer one is shortened."""
    critic_steps: int = 4
    """Gradient steps of the critics after each of the policy, on the same rollouts."""
    trace: float = 0.8
    """Share of the longer returns in what policy and critics aim at: 0 for one step, 1 for the whole rollout."""
    polyak: float = 0.05
    """Share by which target critics approach the critics after each step of the policy."""
    deviation: float = 0.2
    """Standard deviation of every part of an action, before squashing, that is held at every state."""
    multiplier_rate: float = 0.1
    """Of the logarithm of the trust region's multiplier, per gradient step and excess."""

    def __post_init__(self) -> None:
        """Reject settings outside their range."""
        check_choices(self)
        super().__post_init__()
        for name in ("steps", "particles", "updates", "critic_steps"):
            if getattr(self, name) < 1:
                told = "horizon" if name == "steps" else name
                raise UserError(f"bptt.{told} must be at least 1, not {getattr(self, name)}")
        for name in ("learning_rate", "clip", "deviation", "multiplier_rate"):
            if not getattr(self, name) > 0:
                raise UserError(f"bptt.{name} must be above 0, not {getattr(self, name):g}")
        if not 0 <= self.trace <= 1:
            raise UserError(f"bptt.trace must be between 0 and 1, not {self.trace:g}")
        if not 0 < self.polyak <= 1:
            raise UserError(f"bptt.polyak must be in (0, 1], not {self.polyak:g}")

    @property
    def steps(self) -> int:
        """Of a rollout."""
        return _HORIZON[self.kind] if self.horizon is None else self.horizon


class Critics(NamedTuple):
    """Values of states, for each model those on its own rollouts."""

    nets: MLP  # leading axis [models]
    targets: MLP
    optimiser: Any


class BPTTState(NamedTuple):
    """What the solver remembers. The policy's optimiser begins anew with every update."""

    critics: Critics | None  # None where rollouts are worth their rewards alone
    scale: Array  # of rewards: values are of rewards divided by it
    log_multiplier: Array


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


class BPTT(NamedTuple):
    """The solver."""

    settings: BPTTSettings

    @property
    def _climb(self) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(self.settings.clip), optax.adam(self.settings.learning_rate))

    @property
    def _fit(self) -> optax.GradientTransformation:
        return optax.adam(self.settings.learning_rate)

    def begin(self, policy: Policy, models: int, key: Array) -> BPTTState:
        """Untrained critics, if there are any."""
        critics = None
        if self.settings.kind == "maac":
            nets = MLP.create(key, (policy.inputs.mean.shape[-1], *self.settings.hidden, 1), (models,))
            critics = Critics(nets, nets, self._fit.init(eqx.filter(nets, eqx.is_array)))
        return BPTTState(critics, jnp.ones(()), jnp.zeros(()))

    def renormalised(self, state: BPTTState, old: Policy, new: Policy, reward: Array) -> BPTTState:
        """The same values after the policy's normaliser changed and rewards are of the size `reward`."""
        scale, critics = jnp.maximum(reward, 1.0), state.critics
        if critics is not None:
            nets, targets = (same_values(net, old, new, state.scale, scale) for net in critics[:2])
            critics = Critics(nets, targets, critics.optimiser)
        return state._replace(critics=critics, scale=scale)

    def __call__(
        self, policy: Policy, models: ModelSet, objective: Objective, *, starts: Starts, state: BPTTState, key: Array
    ) -> tuple[Policy, BPTTState, Metrics]:
        """Climb the return of new rollouts, step by step; at last step back into the trust region if it was left."""

        def update(carry: tuple, key: Array) -> tuple[tuple, Metrics]:
            policy, optimiser, state = carry
            draw, roll, look = jax.random.split(key, 3)
            begin = starts.draw(draw, (models.count, self.settings.particles))
            loss = eqx.filter_value_and_grad(self.lagrangian, has_aux=True)
            (_, (path, returns)), gradient = loss(policy.net, policy, state, models, objective, begin, roll)
            change, optimiser = self._climb.update(gradient, optimiser)
            acting = eqx.tree_at(lambda p: p.net, policy, eqx.apply_updates(policy.net, change))
            norm = {"gradient_norm": optax.tree.norm(gradient)}
            fitted, told = self._fitted(state, policy, path, returns)
            metrics = norm | told | self._told(path, state, objective)
            return (acting, optimiser, self._watched(acting, fitted, objective, look)), metrics

        carry = policy, self._climb.init(eqx.filter(policy.net, eqx.is_array)), state
        (policy, _, state), metrics = jax.lax.scan(update, carry, jax.random.split(key, self.settings.updates))
        policy, share = step_back(policy, objective.trust)
        norm = metrics.pop("gradient_norm")
        last = jax.tree.map(lambda leaf: jnp.mean(leaf[-max(1, len(leaf) // _PARTS) :]), metrics)
        last |= {"gradient_norm": jnp.mean(norm), "gradient_norm_max": jnp.max(norm), "kept": share}
        return policy, state, last

    def lagrangian(
        self,
        net: MLP,
        policy: Policy,
        state: BPTTState,
        models: ModelSet,
        objective: Objective,
        begin: Array,
        key: Array,
    ) -> tuple[Array, tuple[Path, Array]]:
        """What is descended, as a function of the policy's network; with the rollouts and their returns [H, M, P]."""
        settings, (discount, trust) = self.settings, objective
        acting = eqx.tree_at(lambda p: p.net, policy, net)
        path = roll_out(acting, trust.centre, models, begin, key, settings.steps)
        returns = self._returns(acting, state, path, discount)
        gain = jnp.mean(returns[0]) / jnp.sum(discounts(settings.steps, discount))
        off = path.average(jnp.mean((path.log_deviation - jnp.log(settings.deviation)) ** 2, axis=-1), discount)
        spent = path.average(path.kl, discount)
        multiplier = trust.multiplier(state.log_multiplier)
        # Of the same size whatever the multiplier is.
        return (multiplier * spent + _HELD * off - gain) / (1 + multiplier), (path, returns)

    def _returns(self, policy: Policy, state: BPTTState, path: Path, discount: float) -> Array:
        """From each step on, of rewards divided by their size, [H, M, P]."""
        reward, alive, trace = path.reward / state.scale, path.alive[1:], self.settings.trace
        if state.critics is None:
            return traced(reward, alive, jnp.zeros_like(reward), discount, 1.0)
        return traced(reward, alive, state_values(state.critics.targets, policy, path.states[1:]), discount, trace)

    def _watched(self, policy: Policy, state: BPTTState, objective: Objective, key: Array) -> BPTTState:
        """With the multiplier that follows: rollouts begin anywhere, but the bound is one over states of q."""
        watched, chosen = objective.trust.some_watched(key, _WATCHED)
        spent = jnp.mean(counted(kl_divergence(policy(watched), chosen)))
        rate = self.settings.multiplier_rate
        return state._replace(log_multiplier=objective.trust.adapted(state.log_multiplier, spent, rate))

    def _told(self, path: Path, state: BPTTState, objective: Objective) -> Metrics:
        return {
            "imagined_return": jnp.mean(jnp.sum(path.reward, axis=0)),
            "imagined_ends": jnp.mean(1 - path.alive[-1]),
            "log_deviation": path.average(jnp.mean(path.log_deviation, axis=-1), objective.discount),
            "multiplier": objective.trust.multiplier(state.log_multiplier),
        }

    def _fitted(self, state: BPTTState, policy: Policy, path: Path, returns: Array) -> tuple[BPTTState, Metrics]:
        """With critics, if there are any, that took some steps towards the returns of the rollouts."""
        if state.critics is None:
            return state, {}

        def loss(nets: MLP) -> tuple[Array, Array]:
            value = state_values(nets, policy, path.states[:-1])
            error = path.alive[:-1] * (value - returns) ** 2
            return jnp.sum(jnp.mean(error, axis=(0, 2))), jnp.mean(value)

        def step(carry: tuple[MLP, Any], _: None) -> tuple[tuple[MLP, Any], tuple[Array, Array]]:
            nets, optimiser = carry
            told, gradient = eqx.filter_value_and_grad(loss, has_aux=True)(nets)
            change, optimiser = self._fit.update(gradient, optimiser)
            return (eqx.apply_updates(nets, change), optimiser), told

        begin, share = (state.critics.nets, state.critics.optimiser), self.settings.polyak
        (nets, optimiser), (error, value) = jax.lax.scan(step, begin, length=self.settings.critic_steps)
        targets = jax.tree.map(lambda new, old: share * new + (1 - share) * old, nets, state.critics.targets)
        told = {"critic_loss": error[0] / returns.shape[1], "value": value[0] * state.scale}
        return state._replace(critics=Critics(nets, targets, optimiser)), told


def roll_out(policy: Policy, centre: Policy, models: ModelSet, begin: Array, key: Array, horizon: int) -> Path:
    """From states [M, P, d], and how far the policy is from `centre` on the way.

    For the way back only products are kept, and the rest is computed again: half the memory, in the same time.
    """

    def step(carry: tuple[Array, Array], key: Array) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
        observation, alive = carry
        act, move = jax.random.split(key)
        before = policy(observation)
        action, _ = squashed(before, act)
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
