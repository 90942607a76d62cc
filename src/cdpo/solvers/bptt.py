"""Back-propagation through time: the return of imagined rollouts, differentiated through models and policy."""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from cdpo.dynamics.models import ModelSet
from cdpo.dynamics.networks import MLP
from cdpo.errors import UserError
from cdpo.solvers.base import Metrics, Objective, Size, Starts, StartSettings, step_back
from cdpo.solvers.policy import Policy, mean_divergence, noise_error
from cdpo.solvers.values import Critics, CriticSettings, Memory, Path, discounts, roll_out

_PARTS = 10  # of an update; metrics are means over the last of them
_HORIZON = {"maac": 10, "svg": 60}


@dataclass(frozen=True)
class BPTTSettings(CriticSettings, StartSettings):
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
    clip: float = 1.0
    """Largest norm of a policy's gradient; a longer one is shortened."""
    deviation: float = 0.2
    """Standard deviation of every part of an action, before squashing, that is held at every state."""
    multiplier_rate: float = 0.1
    """Of the logarithm of the trust region's multiplier, per gradient step and excess."""

    def __post_init__(self) -> None:
        """A rollout has steps."""
        super().__post_init__()
        if self.steps < 1:
            raise UserError(f"bptt.horizon must be at least 1, not {self.steps}")

    @property
    def steps(self) -> int:
        """Of a rollout."""
        return _HORIZON[self.kind] if self.horizon is None else self.horizon


class BPTT(NamedTuple):
    """The solver."""

    settings: BPTTSettings

    @property
    def _climb(self) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(self.settings.clip), optax.adam(self.settings.learning_rate))

    def begin(self, policy: Policy, models: int, key: Array) -> Memory:
        """Untrained critics, if there are any."""
        learned = self.settings.kind == "maac"
        critics = Critics.create(policy, models, self.settings, key) if learned else None
        return Memory.create(critics)

    def renormalised(self, state: Memory, old: Policy, new: Policy, size: Size) -> Memory:
        """The same values after the policy's normaliser changed and what is paid is of another `size`."""
        return state.renormalised(old, new, size)

    def beyond(self, state: Memory, policy: Policy, states: Array) -> Array | None:
        """What follows states, by the target critics."""
        return state.beyond(policy, states)

    def __call__(
        self, policy: Policy, models: ModelSet, objective: Objective, *, starts: Starts, state: Memory, key: Array
    ) -> tuple[Policy, Memory, Metrics]:
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
            fitted, told = state.having_seen(path, objective.discount).fitted(policy, path, returns, self.settings)
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
        state: Memory,
        models: ModelSet,
        objective: Objective,
        begin: Array,
        key: Array,
    ) -> tuple[Array, tuple[Path, Array]]:
        """What is descended, as a function of the policy's network; with the rollouts and their returns [H, M, P]."""
        settings, (discount, trust) = self.settings, objective
        acting = eqx.tree_at(lambda p: p.net, policy, net)
        path = roll_out(acting, trust.centre, models, begin, key, settings.steps)
        returns = state.having_seen(path, discount).returns(path, acting, discount, settings.trace)
        gain = jnp.mean(returns[0]) / jnp.sum(discounts(settings.steps, discount))
        off = path.average(noise_error(path.log_deviation, settings.deviation), discount)
        spent = path.average(path.kl, discount)
        multiplier = trust.multiplier(state.log_multiplier)
        return trust.lagrangian(off - gain, spent, multiplier), (path, returns)

    def _watched(self, policy: Policy, state: Memory, objective: Objective, key: Array) -> Memory:
        """With the multiplier that follows: rollouts begin anywhere, but the bound is one over states of q."""
        watched, chosen = objective.trust.some_watched(key)
        spent = mean_divergence(policy(watched), chosen)
        rate = self.settings.multiplier_rate
        return state._replace(log_multiplier=objective.trust.adapted(state.log_multiplier, spent, rate))

    def _told(self, path: Path, state: Memory, objective: Objective) -> Metrics:
        return {
            "imagined_return": jnp.mean(jnp.sum(path.reward, axis=0)),
            "imagined_ends": jnp.mean(1 - path.alive[-1]),
            "log_deviation": path.average(jnp.mean(path.log_deviation, axis=-1), objective.discount),
            "multiplier": objective.trust.multiplier(state.log_multiplier),
        }
