"""Trust-region policy optimisation (Schulman et al. 2015)."""

from dataclasses import dataclass
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.scipy.sparse.linalg import cg

from cdpo.solvers.base import Metrics, Objective
from cdpo.solvers.onpolicy import Judged, OnPolicyLearner, OnPolicySettings, OnPolicyState
from cdpo.solvers.policy import Gaussian, Policy, kl_divergence


@dataclass(frozen=True)
class TRPOSettings(OnPolicySettings):
    """The learner trpo."""

    part: ClassVar[str] = "trpo"

    kl: float = 0.01
    """How far one step may lead from the policy that acted, in KL, on average over the states of its rollouts."""
    damping: float = 0.1
    """Added to the curvature of that KL: directions in which it hardly grows are not trusted without end."""
    directions: int = 10
    """Conjugate directions by which the step is solved for."""
    trials: int = 10
    """Steps that are tried, each half as long as the one before, until one gains and is not too far."""
    critic_steps: int = 10
    """Gradient steps of the critics on all rollouts, after the step of the policy."""


class TRPO(OnPolicyLearner):
    """Climbs the advantages of what was done by one natural step, as long as the KL allows and they gain by it."""

    settings: TRPOSettings

    def _improved(
        self, policy: Policy, state: OnPolicyState, judged: Judged, objective: Objective, key: Array
    ) -> tuple[Policy, OnPolicyState, Metrics]:
        """One step of the policy on all rollouts, and some of the critics."""
        settings, trust = self.settings, objective.trust
        old = policy(judged.observation)

        def loss(acting: Policy, here: Gaussian) -> tuple[Array, tuple[Array, Array]]:
            gain = jnp.mean(jnp.exp(self._density(here, judged.raw) - judged.density) * judged.advantage)
            return self._held(here) - gain, (jnp.mean(here.log_deviation), jnp.mean(kl_divergence(old, here)))

        descended, multiplier = self._lagrangian(policy, state, judged.observation, loss, trust, key)
        flat, structure = ravel_pytree(policy.net)

        def at(place: Array) -> tuple[Array, Array]:
            """What is descended there, and the KL from here."""
            value, ((_, moved), _) = descended(structure(place))
            return value, moved

        slope = jax.grad(lambda place: at(place)[0])(flat)
        curve = jax.grad(lambda place: at(place)[1])

        def curvature(direction: Array) -> Array:
            return jax.jvp(curve, (flat,), (direction,))[1] + settings.damping * direction

        direction, _ = cg(curvature, -slope, maxiter=settings.directions)
        length = jnp.sqrt(2 * settings.kl / jnp.maximum(direction @ curvature(direction), 1e-12))
        shares = 0.5 ** jnp.arange(settings.trials)
        value, moved = jax.lax.map(lambda share: at(flat + share * length * direction), shares)
        good = (value < at(flat)[0]) & (moved <= settings.kl)
        share = jnp.where(jnp.any(good), shares[jnp.argmax(good)], 0.0)
        acting = eqx.tree_at(lambda p: p.net, policy, structure(flat + share * length * direction))

        _, ((noise, moved), spent) = descended(acting.net)
        log_multiplier = trust.adapted(state.log_multiplier, spent, settings.multiplier_rate)
        state = state._replace(log_multiplier=log_multiplier)
        step = lambda state, _: self._valued(policy, state, judged)  # noqa: E731
        state, metrics = jax.lax.scan(step, state, length=settings.critic_steps)
        first = jax.tree.map(lambda leaf: leaf[0], metrics)
        told = {"log_deviation": noise, "multiplier": multiplier, "moved": moved, "step": share}
        return acting, state, first | told
