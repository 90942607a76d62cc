"""How good a shared policy can be: an upper bound on the conservative update's objective, by branch and bound.

The mean value of one policy over several models has many local optima, so that ascent alone proves nothing. If every
model had a policy of its own, each could be solved exactly, and what they share can be no better. In a small box of
policies the models' own ones are nearly the same: the bound gets as tight as is paid for. Boxes are halved; those that
lie outside of the trust region, or cannot hold anything better, are dropped.
"""

from dataclasses import dataclass

import numpy as np
from jax import Array

from cdpo.tabular.planning import Known, Model
from cdpo.tabular.trust import Trust

_AT_ONCE = 256  # boxes that are bounded together
_MOST_SWEEPS = 100  # of policy iteration in a box
_ROUNDING = 1e-7  # of policies that come in float32


@dataclass(frozen=True)
class Certificate:
    """The largest mean value from the start that a policy of the trust region can have is between the two."""

    reached: float  # by `policy`
    bound: float
    policy: np.ndarray  # [S, A], the best that was met
    boxes: int  # that were bounded; with a single one each model has a policy of its own


def certify(
    centre: Array,
    models: Model,
    known: Known,
    trust: Trust | None,
    found: Array | None = None,
    *,
    gap: float = 1e-3,
    boxes: int = 20_000,
) -> Certificate:
    """Bound what the policies of the trust region around `centre` reach, until the gap is closed or boxes are spent.

    `found` is a policy of the region to begin with. Effort grows exponentially with states and actions: for small
    cases. In float64, so that the bound is of these models and not of their rounding.
    """
    problem = _Problem(centre, models, known, trust)
    best = problem.centre
    reached = problem.values(best[None])[0]
    if found is not None:
        reached, best = problem.better(np.asarray(found, np.float64)[None], reached, best)
    low, high = problem.tightened(np.zeros((1, *best.shape)), problem.allowed[None].astype(float))
    limit, tried = problem.limits(low, high)
    reached, best = problem.better(tried, reached, best)
    spent, dropped = 1, -np.inf
    while spent < boxes:
        hopeful = limit > reached + gap
        dropped = max(dropped, limit[~hopeful].max(initial=-np.inf))
        low, high, limit = low[hopeful], high[hopeful], limit[hopeful]
        if not len(limit):
            break
        order = np.argsort(-limit)
        now, later = order[:_AT_ONCE], order[_AT_ONCE:]
        new_low, new_high = problem.tightened(*_halves(low[now], high[now]))
        new_limit, tried = problem.limits(new_low, new_high)
        reached, best = problem.better(tried, reached, best)
        spent += len(new_limit)
        low, high = np.concatenate([low[later], new_low]), np.concatenate([high[later], new_high])
        limit = np.concatenate([limit[later], new_limit])
    return Certificate(float(reached), float(max(reached, dropped, limit.max(initial=-np.inf))), best, spent)


def _halves(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each box [B, S, A] as two, cut where it is widest."""
    count = len(low)
    widest = (high - low).reshape(count, -1).argmax(axis=1)
    state, action = np.unravel_index(widest, low.shape[1:])
    cell = (np.arange(count), state, action)
    middle = (low[cell] + high[cell]) / 2
    under, over = high.copy(), low.copy()
    under[cell], over[cell] = middle, middle
    return np.concatenate([low, over]), np.concatenate([under, high])


class _Problem:
    """The models and the region, in float64."""

    def __init__(self, centre: Array, models: Model, known: Known, trust: Trust | None):
        self.centre = np.asarray(centre, np.float64)
        self.allowed = np.asarray(known.allowed)
        self.transition = np.asarray(models.transition, np.float64)  # [K, S, A, S]
        self.reward = np.asarray(models.reward, np.float64)
        self.start = np.asarray(known.start, np.float64)
        self.discount = float(known.discount)
        self.room = 1.0 if trust is None else float(trust.bound)
        self.cost = None if trust is None or trust.cost is None else np.asarray(trust.cost, np.float64)

    def tightened(self, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Boxes [B, S, A] without what lies outside of the region, and without those that do so as a whole."""
        # Of all distributions in a box, the nearest to the centre's differs by this much.
        above = np.maximum(low - self.centre, 0).sum(-1)
        least = np.maximum(above, np.maximum(self.centre - high, 0).sum(-1))  # [B, S]
        if self.cost is None:
            room, inside = np.full_like(least, self.room), (least <= self.room + _ROUNDING).all(axis=1)
        else:
            left = self.room - least @ self.cost  # [B]
            inside = left >= -_ROUNDING
            free = self.cost <= 0
            room = least + np.maximum(left, 0)[:, None] / np.where(free, 1.0, self.cost)
            room = np.where(free, 1.0, room)
        low = np.maximum(low, self.centre - room[..., None])
        high = np.minimum(high, self.centre + room[..., None])
        low = np.maximum(low, 1 - (high.sum(-1, keepdims=True) - high))
        high = np.minimum(high, 1 - (low.sum(-1, keepdims=True) - low))
        exists = (low <= high + _ROUNDING).all(axis=(1, 2))
        exists &= (low.sum(-1) <= 1 + _ROUNDING).all(axis=1) & (high.sum(-1) >= 1 - _ROUNDING).all(axis=1)
        return low[inside & exists], high[inside & exists]

    def limits(self, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What no policy of a box exceeds, [B]; and the models' own best policies, averaged, [B, S, A]."""
        low, high = low[:, None], high[:, None]  # beside the models
        own = _filled(low, high, np.broadcast_to(self.reward, (len(low), *self.reward.shape)))
        for _ in range(_MOST_SWEEPS):
            value = self._evaluated(own)
            q = self._action_values(value)
            better = _filled(low, high, q)
            missed = np.sum(better * q, axis=-1) - value
            if missed.max(initial=0.0) < 1e-10:
                break
            own = better
        # What one more sweep would gain, for ever, bounds what is still missing.
        top = value @ self.start + np.maximum(missed, 0).max(axis=-1) / (1 - self.discount)
        return top.mean(axis=1), own.mean(axis=1)

    def better(self, tried: np.ndarray, reached: float, best: np.ndarray) -> tuple[float, np.ndarray]:
        """The best of what was reached and of policies [B, S, A], drawn back to the region where they lie outside."""
        distance = 0.5 * np.abs(tried - self.centre).sum(-1)
        used = distance.max(axis=1) if self.cost is None else distance @ self.cost
        part = np.minimum(1.0, self.room / np.maximum(used, 1e-300))[:, None, None]
        inside = self.centre + part * (tried - self.centre)
        values = self.values(inside)
        if len(values) and values.max() > reached:
            return values.max(), inside[values.argmax()]
        return reached, best

    def values(self, policies: np.ndarray) -> np.ndarray:
        """The mean over the models from the start, [B]."""
        return np.asarray((self._evaluated(policies[:, None]) @ self.start).mean(axis=1))

    def _evaluated(self, policies: np.ndarray) -> np.ndarray:
        """V of policies [B, K or 1, S, A] under each model, [B, K, S]."""
        transition = np.einsum(
            "bksa,ksat->bkst", np.broadcast_to(policies, (len(policies), *self.reward.shape)), self.transition
        )
        reward = np.sum(policies * self.reward, axis=-1)
        return np.linalg.solve(np.eye(len(self.start)) - self.discount * transition, reward[..., None])[..., 0]

    def _action_values(self, value: np.ndarray) -> np.ndarray:
        return self.reward + self.discount * np.einsum("ksat,bkt->bksa", self.transition, value)


def _filled(low: np.ndarray, high: np.ndarray, q: np.ndarray) -> np.ndarray:
    """The distributions between low and high with the largest mean of q; all [..., A]."""
    order = np.argsort(-q, axis=-1)
    low, high = np.broadcast_to(low, q.shape), np.broadcast_to(high, q.shape)
    lowest, room = (np.take_along_axis(x, order, axis=-1) for x in (low, high - low))
    spare = 1 - lowest.sum(-1, keepdims=True)
    taken = np.clip(spare - (np.cumsum(room, axis=-1) - room), 0, room)
    filled = np.empty_like(q)
    np.put_along_axis(filled, order, lowest + taken, axis=-1)
    return filled
