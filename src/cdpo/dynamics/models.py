"""Models to plan on: the reference, and others that differ from it as the calibrated heads do."""

from typing import Literal, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from cdpo.dynamics.calibration import Calibration, spread_of, width_of
from cdpo.dynamics.ensemble import Ensemble, Prediction
from cdpo.dynamics.networks import MLP
from cdpo.tasks import Task


class Belief(eqx.Module):
    """What is known after a fit: the ensemble, its calibration, and the range in which states may lie."""

    ensemble: Ensemble
    calibration: Calibration
    range: Array  # [2, d], of states
    rewards: Array  # [2], the least and the largest seen: a learned reward stays between them
    ends: Array  # [], bool, whether the task was ever seen to end: before that no learned end is believed
    task: Task = eqx.field(static=True)

    @property
    def heads(self) -> int:
        """Members on bootstrap samples."""
        return self.ensemble.members - 1

    def interval(self, observation: Array, action: Array, level: float) -> tuple[Array, Array]:
        """The ends of the central interval that is to hold the next observation with a chance of `level`, [B, d]."""
        mean, width = self.predict(observation, action)
        away = self.calibration.reach_of(level)[: self.task.observations] * width
        return mean - away, mean + away

    def predict(self, observation: Array, action: Array) -> tuple[Array, Array]:
        """Mean and calibrated width of the next observation, [B, d] each; actions in [-1, 1]."""
        ensemble = self.ensemble
        prediction = ensemble.read(ensemble.net(ensemble.encode(self.task, observation, action)))
        noise = None if prediction.deviation is None else prediction.deviation[0]
        width = width_of(self.calibration, spread_of(prediction), noise)
        size = self.task.observations
        mean = observation + ensemble.targets.undo(prediction.mean[0])[..., :size]
        return mean, (width * ensemble.targets.deviation)[..., :size]


class Step(NamedTuple):
    """Where models lead."""

    next: Array  # [M, B, d]
    reward: Array  # [M, B]
    terminated: Array  # [M, B], 1.0 or 0.0


class ModelSet(eqx.Module):
    """M models, each the reference plus gains times the differences of some heads to it:

        f_i = f_ref + sum_k gain[i, k] * (f_head[i, k] - f_ref)

    With `optimism` the policy chooses, beside the action, where in the calibrated spread the next state falls:

        f_i = f_ref + optimism * scale * spread * u,    u in [-1, 1]

    All models of a set are batched; a trajectory keeps its model, unless one is drawn for every step.
    """

    belief: Belief
    reference: MLP  # one network, or one for each model
    heads: Array  # [M, n] numbers of heads, from 1
    gain: Array  # [M, n, o]
    optimism: Array | None = None  # [] or None
    reach: Array | None = None  # [], int32: steps of a rollout that may be learned from; None: all
    switching: bool = eqx.field(static=True, default=False)  # whether each step has a model that is drawn for it

    @property
    def count(self) -> int:
        """M."""
        return self.heads.shape[0]

    def step(self, observation: Array, action: Array, key: Array) -> Step:
        """One step of every model on a batch of its own: observation [M, B, d], action [M, B, m (+ o)]."""
        if not self.switching:
            return self._step(observation, action, key)
        # Dealt out anew, the rows of all batches come to any model with the same chance, and to each as many.
        order = jax.random.permutation(jax.random.fold_in(key, 2), observation.shape[0] * observation.shape[1])

        def dealt(rows: Array, order: Array) -> Array:
            return rows.reshape(-1, *rows.shape[2:])[order].reshape(rows.shape)

        taken = self._step(dealt(observation, order), dealt(action, order), key)
        return jax.tree.map(lambda rows: dealt(rows, jnp.argsort(order)), taken)

    def _step(self, observation: Array, action: Array, key: Array) -> Step:
        """Each batch on its model."""
        task, ensemble = self.belief.task, self.belief.ensemble
        action, choice = action[..., : task.actions], action[..., task.actions :]
        seen = ensemble.encode(task, observation, action)
        reference = ensemble.read(self.reference(seen))
        difference = self._apart(seen, reference.mean)
        mean = reference.mean + jnp.sum(self.gain[:, :, None] * difference, axis=1)
        if self.optimism is not None:
            spread = _root(jnp.mean(difference**2, axis=1))
            mean = mean + self.optimism * self.belief.calibration.scale * spread * choice
        if reference.deviation is not None:
            # The calibration is about the reference; members that take its place have the noise they were fitted with.
            noise = 1.0 if self.switching else self.belief.calibration.noise
            mean = mean + noise * reference.deviation * jax.random.normal(jax.random.fold_in(key, 0), mean.shape)
        return self._finish(observation, action, mean, reference, jax.random.fold_in(key, 1))

    def _apart(self, seen: Array, reference: Array) -> Array:
        """What each model's heads say beyond the reference, [M, n, B, o]; zero, unasked, where they have no part."""
        ensemble, (models, heads) = self.belief.ensemble, self.heads.shape

        def asked() -> Array:
            return ensemble.read(ensemble.net.member(self.heads)(seen[:, None])).mean - reference[:, None]

        if self.optimism is not None:
            return asked()
        # Half the arithmetic of the referential update, except where seeds are mapped: there both branches run.
        return jax.lax.cond(
            jnp.any(self.gain != 0), asked, lambda: jnp.zeros((models, heads, *reference.shape[1:]), reference.dtype)
        )

    def _finish(self, observation: Array, action: Array, mean: Array, reference: Prediction, key: Array) -> Step:
        """Out of z-scores, inside the range, with reward and end."""
        belief, task = self.belief, self.belief.task
        raw = belief.ensemble.targets.undo(mean)
        size = task.observations
        following = jnp.clip(observation + raw[..., :size], *belief.range)
        real = task.unscaled(action)
        if task.reward is not None:
            reward = task.reward(observation, real, following)
        else:
            reward = jnp.clip(raw[..., size], *belief.rewards)
        if task.terminates is not None:
            ends = task.terminates(observation, real, following)
        else:
            assert reference.end is not None
            ends = belief.ends & (jax.random.uniform(key, reference.end.shape) < jax.nn.sigmoid(reference.end))
        return Step(following, reward, ends.astype(jnp.float32))

    def only(self, index: int | Array) -> Self:
        """One of the models, as a set."""
        return self._those(jnp.asarray(index)[None])

    def repeated(self, count: int) -> Self:
        """The first model `count` times."""
        return self._those(jnp.zeros(count, jnp.int32))

    def _those(self, rows: Array) -> Self:
        net = self.reference if self.reference.biases[0].ndim == 1 else self.reference.member(rows)
        those = (net, self.heads[rows], self.gain[rows])
        return eqx.tree_at(lambda m: (m.reference, m.heads, m.gain), self, those)


def _root(square: Array) -> Array:
    """The square root, with gradient 0 at 0, where heads agree: there that of the plain root is not a number."""
    positive = square > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1.0)), 0.0)


def reference_model(
    belief: Belief, models: int, heads: int = 0, *, mean: bool = False, net: MLP | None = None
) -> ModelSet:
    """The reference, `models` times: the least-squares member, the mean of the heads, or another network.

    `heads` members have no part in it, so that the set has the shape, and the compiled program, of a sampled one.
    """
    size = belief.ensemble.targets.mean.shape[-1]
    heads = belief.heads if mean else heads
    numbers = jnp.broadcast_to(1 + jnp.arange(heads), (models, heads))
    gain = jnp.full((models, heads, size), 1 / belief.heads if mean else 0.0, jnp.float32)
    return ModelSet(belief, belief.ensemble.net.member(0) if net is None else net, numbers, gain)


def sampled_models(belief: Belief, models: int, sampling: Literal["subset", "mix"], key: Array) -> ModelSet:
    """Models from the calibrated posterior: heads, none twice while there are enough; or random mixes of all heads.

    A mix has Dirichlet weights, stretched to the length of a single head's: averaging must not shrink the spread.
    """
    heads, scale = belief.heads, belief.calibration.scale
    if sampling == "subset":
        laps = -(-models // heads)
        orders = [jax.random.permutation(jax.random.fold_in(key, lap), heads) for lap in range(laps)]
        numbers = 1 + jnp.concatenate(orders)[:models, None]
        weights = jnp.ones((models, 1))
    else:
        numbers = jnp.broadcast_to(1 + jnp.arange(heads), (models, heads))
        weights = jax.random.dirichlet(key, jnp.ones(heads), (models,))
        weights = weights / jnp.linalg.norm(weights, axis=-1, keepdims=True)
    return ModelSet(belief, belief.ensemble.net.member(0), numbers, weights[..., None] * scale)


def member_models(belief: Belief, numbers: Array, reach: Array | None = None) -> ModelSet:
    """Members [M] as they were fitted, with their own noise and ends; each step of a rollout under one of them."""
    none = jnp.zeros((len(numbers), 0, belief.ensemble.targets.mean.shape[-1]))
    members = belief.ensemble.net.member(numbers)
    return ModelSet(belief, members, none[..., 0].astype(jnp.int32), none, reach=reach, switching=True)


def optimistic_model(belief: Belief, models: int, beta: float) -> ModelSet:
    """The reference plus what the policy chooses inside `beta` calibrated standard deviations."""
    still = reference_model(belief, models, belief.heads)
    return eqx.tree_at(lambda m: m.optimism, still, jnp.asarray(beta), is_leaf=lambda leaf: leaf is None)
