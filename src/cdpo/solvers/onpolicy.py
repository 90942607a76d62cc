"""What learners on the newest rollouts share: critics of states, and advantages along each rollout."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from cdpo.dynamics.networks import MLP
from cdpo.dynamics.replay import Transition
from cdpo.solvers.base import Metrics, Objective, Size
from cdpo.solvers.critics import by_model, same_values, state_values, traced, widened
from cdpo.solvers.learner import Learner, LearnerSettings
from cdpo.solvers.policy import Gaussian, Policy, log_density, noise_error, unsquashed


@dataclass(frozen=True)
class OnPolicySettings(LearnerSettings, shares=("trace",)):
    """How rollouts are judged, and how much noise they have."""

    trace: float = 0.95
    """Share of the longer returns in advantages and in what critics aim at, the lambda of GAE; 1 for whole rollouts."""
    noise: Literal["held", "learned"] = "held"
    """Whether the deviation of actions is held at the one below, or climbs the advantages as their means do."""
    deviation: float = 0.2
    """Standard deviation of every part of an action, before squashing, that is held at every state."""


class OnPolicyState(NamedTuple):
    """What the learner remembers."""

    critics: MLP  # leading axis [models]
    scale: Array  # of values: critics see rewards divided by it, and what they say is of the size of one
    rewards: Array  # [2], the least and the largest seen so far, zero among them
    log_multiplier: Array
    critic_optimiser: Any
    policy_optimiser: Any


class Judged(NamedTuple):
    """What was done, and what it turned out to be worth, [H, M, P] or any batch of it."""

    observation: Array  # [..., d]
    raw: Array  # [..., m], actions before squashing
    density: Array  # [...], their log-density under the policy that acted
    advantage: Array  # [...], of the returns over the values
    returns: Array  # [...], TD(lambda), of rewards divided by the scale


class OnPolicyLearner(Learner):
    """Learns by `learn` on rollouts of the policy itself."""

    def learn(
        self,
        policy: Policy,
        state: OnPolicyState,
        taken: Transition,
        objective: Objective,
        key: Array,
        leads: Array | None = None,
    ) -> tuple[Policy, OnPolicyState, Metrics]:
        """From transitions [H, M, P], in the order of time; where a task ended, another begins with the next step.

        Rollouts may also be cut off between two steps: `leads` [H, M, P] is 1.0 where a step leads to the next.
        """
        state, judged = self._judged(policy, state, taken, objective.discount, leads)
        judged = judged._replace(advantage=_scaled(judged.advantage))
        return self._improved(policy, state, judged, objective, key)

    @abstractmethod
    def _improved(
        self, policy: Policy, state: OnPolicyState, judged: Judged, objective: Objective, key: Array
    ) -> tuple[Policy, OnPolicyState, Metrics]:
        """By what was judged [H, M, P], with advantages of mean zero and deviation one."""

    def begin(self, policy: Policy, models: int, key: Array) -> OnPolicyState:
        """Untrained critics."""
        count = models if self.settings.critic == "per-model" else 1
        critics = MLP.create(key, (policy.inputs.mean.shape[-1], *self.settings.hidden, 1), (count,))
        return OnPolicyState(
            critics,
            jnp.ones(()),
            jnp.zeros(2),
            jnp.zeros(()),
            self._network.init(eqx.filter(critics, eqx.is_array)),
            self._network.init(eqx.filter(policy.net, eqx.is_array)),
        )

    def renormalised(self, state: OnPolicyState, old: Policy, new: Policy, size: Size) -> OnPolicyState:
        """The same values after the policy's normaliser changed and what is paid is of another `size`."""
        scale = jnp.maximum(size.value, 1.0)
        return state._replace(critics=same_values(state.critics, old, new, state.scale, scale), scale=scale)

    def beyond(self, state: OnPolicyState, policy: Policy, states: Array) -> Array:
        """What follows states [M, B, d], [M, B], each by the critic of its model."""
        return state.scale * state_values(state.critics, policy, states[None])[0]

    def _judged(
        self, policy: Policy, state: OnPolicyState, taken: Transition, discount: float, leads: Array | None = None
    ) -> tuple[OnPolicyState, Judged]:
        """By generalised advantage estimation (Schulman et al. 2016); the last state of a rollout has its value.

        Values of what follows are kept within what rewards can add up to.
        """
        if self.settings.critic == "pooled":
            taken, leads = jax.tree.map(lambda x: x.reshape(x.shape[0], 1, -1, *x.shape[3:]), (taken, leads))
        here, there = (state_values(state.critics, policy, places) for places in (taken.observation, taken.next))
        state = state._replace(rewards=widened(state.rewards, taken.reward))
        there = jnp.clip(there, *(state.rewards / (1 - discount) / state.scale))
        reward, alive = taken.reward / state.scale, 1 - taken.terminated
        if leads is not None:  # what follows a cut is its value alone, as if that had been paid
            reward, alive = reward + discount * alive * (1 - leads) * there, alive * leads
        returns = traced(reward, alive, there, discount, self.settings.trace)
        raw = unsquashed(taken.action)
        density = log_density(policy(taken.observation), raw)
        return state, Judged(taken.observation, raw, density, returns - here, returns)

    def _valued(self, policy: Policy, state: OnPolicyState, batch: Judged) -> tuple[OnPolicyState, Metrics]:
        """With critics after one gradient step towards the returns of a batch [H, M, P]."""

        def loss(critics: MLP) -> tuple[Array, Array]:
            value = state_values(critics, policy, batch.observation)
            return jnp.sum(jnp.mean((value - batch.returns) ** 2, axis=(0, 2))), jnp.mean(value)

        (error, value), gradient = eqx.filter_value_and_grad(loss, has_aux=True)(state.critics)
        change, optimiser = self._network.update(gradient, state.critic_optimiser)
        state = state._replace(critics=eqx.apply_updates(state.critics, change), critic_optimiser=optimiser)
        return state, {"critic_loss": error / batch.returns.shape[1], "value": value * state.scale}

    def _passed(
        self,
        policy: Policy,
        state: OnPolicyState,
        judged: Judged,
        objective: Objective,
        key: Array,
        loss: Callable[[Judged, Gaussian], tuple[Array, Metrics]],
    ) -> tuple[Policy, OnPolicyState, Metrics]:
        """Through all that was judged [H, M, P], in parts and `epochs` times: gradient steps of critics and policy.

        The loss is one of a part and what the policy does there. Metrics are means over the steps.
        """
        epochs, judged = self.settings.epochs, jax.tree.map(by_model, judged)
        rows = judged.returns.shape[1]
        parts = min(self.settings.minibatches, rows)
        shuffle, learn = jax.random.split(key)
        orders = jax.vmap(lambda key: jax.random.permutation(key, rows))(jax.random.split(shuffle, epochs))
        places = orders[:, : rows - rows % parts].reshape(epochs * parts, -1)

        def step(carry: tuple[Policy, OnPolicyState], one: tuple[Array, Array]) -> tuple[tuple, Metrics]:
            policy, state = carry
            place, key = one
            part = jax.tree.map(lambda leaf: leaf[None, :, place], judged)

            def total(acting: Policy, here: Gaussian) -> tuple[Array, Metrics]:
                value, told = loss(part, here)
                return self._held(here) + value, told | {"log_deviation": jnp.mean(here.log_deviation)}

            state, metrics = self._valued(policy, state, part)
            policy, state, told, multiplier = self._climbed(
                policy, state, part.observation, total, objective.trust, key
            )
            return (policy, state), metrics | told | {"multiplier": multiplier}

        keys = jax.random.split(learn, epochs * parts)
        (policy, state), metrics = jax.lax.scan(step, (policy, state), (places, keys))
        return policy, state, jax.tree.map(jnp.mean, metrics)

    def _density(self, here: Gaussian, raw: Array) -> Array:
        """Of actions before squashing, [...]; where noise is held, for gradients that move the means alone."""
        if self.settings.noise == "held":
            here = here._replace(log_deviation=jax.lax.stop_gradient(here.log_deviation))
        return log_density(here, raw)

    def _held(self, here: Gaussian) -> Array | float:
        """What a deviation other than the one to be held costs."""
        if self.settings.noise == "learned":
            return 0.0
        return jnp.mean(noise_error(here.log_deviation, self.settings.deviation))


def _scaled(advantage: Array) -> Array:
    """To a mean of zero and a deviation of one."""
    return (advantage - jnp.mean(advantage)) / (jnp.std(advantage) + 1e-6)
