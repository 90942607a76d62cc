"""Finite Markov decision processes as exact tables, with the sampler beside them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from cdpo.errors import UserError, shown
from cdpo.tabular.archive import read_arrays
from cdpo.terminal import printable

MOST_ENTRIES = 2**24  # of a table [S, A, S]: 64 MiB, and a simulation has some ten of them for each of several seeds
_REQUIRED = frozenset({"transition", "reward_mean"})
_OPTIONAL = frozenset({"reward_sd", "start", "terminal", "allowed", "discount"})

Sampler = Callable[[Array, Array, Array, Array], tuple[Array, Array]]


class FiniteMDP(eqx.Module):
    """A finite MDP: S states, A actions, Gaussian rewards for each (s, a, s').

    Entering a terminal state ends the episode: its value is zero and the process starts again from `start`.
    An MDP without terminal states is one unending episode.

    Every table is checked on entry; the error names the bad entry.
    """

    transition: Array  # [S, A, S], rows sum to one
    reward_mean: Array  # [S, A, S]
    reward_sd: Array  # [S, A, S]
    start: Array  # [S], distribution of the first state
    terminal: Array  # [S] bool
    allowed: Array  # [S, A] bool, the actions that exist in a state
    discount: Array  # scalar in [0, 1)

    def __init__(
        self,
        transition: ArrayLike,
        reward_mean: ArrayLike,
        reward_sd: ArrayLike = 0.0,
        *,
        start: ArrayLike = 0,
        terminal: ArrayLike | None = None,
        allowed: ArrayLike | None = None,
        discount: ArrayLike = 0.9,
    ):
        """Rewards may be given as [S, A, S], as [S, A], or as one number; `start` as a state or a distribution."""
        given = (transition, reward_mean, reward_sd, start, terminal, allowed, discount)
        concrete = not any(isinstance(x, jax.core.Tracer) for x in given)
        # Concrete tables are handled and checked in NumPy at the precision they came in, also under a trace;
        # traced ones (an MDP drawn for each seed) are trusted.
        xp: Any = np if concrete else jnp
        dynamics = _numbers(xp, "transition", transition)
        shape = dynamics.shape
        if len(shape) != 3 or shape[0] != shape[2] or 0 in shape:
            raise UserError(f"transition must have shape [S, A, S] with S, A >= 1, not {list(shape)}")
        states, actions, _ = shape
        check_entries("transition", states, actions)
        first = _numbers(xp, "start", start)
        if first.ndim == 0:
            if concrete and first not in range(states):
                raise UserError(f"start is state {first:g}, but the states are 0..{states - 1}")
            first = xp.eye(states)[first.astype(int)]
        tables = {
            "transition": dynamics,
            "reward_mean": _as_rewards("reward_mean", _numbers(xp, "reward_mean", reward_mean), shape),
            "reward_sd": _as_rewards("reward_sd", _numbers(xp, "reward_sd", reward_sd), shape),
            "start": _of_shape("start", first, (states,)),
            "terminal": xp.zeros(states, bool) if terminal is None else _numbers(xp, "terminal", terminal, bool),
            "allowed": xp.ones((states, actions), bool) if allowed is None else _numbers(xp, "allowed", allowed, bool),
            "discount": _of_shape("discount", _numbers(xp, "discount", discount), ()),
        }
        _of_shape("terminal", tables["terminal"], (states,))
        _of_shape("allowed", tables["allowed"], (states, actions))
        if concrete:
            _check(**tables)
        for name, table in tables.items():
            setattr(self, name, jnp.asarray(table, bool if table.dtype == bool else jnp.float32))

    @property
    def states(self) -> int:
        """S."""
        return self.transition.shape[-1]

    @property
    def actions(self) -> int:
        """A."""
        return self.transition.shape[-2]

    @property
    def reward(self) -> Array:
        """Expected reward r(s, a), [S, A]."""
        return jnp.sum(self.transition * self.reward_mean, axis=-1)

    def sampler(self) -> Sampler:
        """`step(state, action, uniform, normal) -> next state, reward`; the noise is the caller's to draw."""
        quantiles = inverse_cdf_table(self.transition)

        def step(state: Array, action: Array, uniform: Array, normal: Array) -> tuple[Array, Array]:
            successor = draw(quantiles[state, action], uniform)
            cell = (state, action, successor)
            return successor, self.reward_mean[cell] + self.reward_sd[cell] * normal

        return step


def inverse_cdf_table(probability: Array) -> Array:
    """Cumulated probabilities over the last axis for `draw`, such that an outcome of probability zero is never drawn.

    Long sums of float32 neither rise strictly nor end at one. So an impossible outcome gets the sum of the possible one
    before it, and from the last possible one on the sum is above any uniform number.
    """
    possible = probability > 0
    cumulated = jax.lax.cummax(jnp.where(possible, jnp.cumsum(probability, axis=-1), 0.0), axis=probability.ndim - 1)
    last = probability.shape[-1] - 1 - jnp.argmax(possible[..., ::-1], axis=-1, keepdims=True)
    return jnp.where(jnp.arange(probability.shape[-1]) < last, cumulated, 2.0)


def draw(quantiles: Array, uniform: Array) -> Array:
    """The outcome that a uniform number in [0, 1) selects from a row of `inverse_cdf_table`."""
    return jnp.sum(uniform >= quantiles, axis=-1, dtype=jnp.int32)


def load_mdp(path: str | Path) -> FiniteMDP:
    """Read a FiniteMDP from an .npz file whose arrays carry the constructor's names. No pickle is loaded."""
    arrays = read_arrays(path, _REQUIRED | _OPTIONAL, MOST_ENTRIES)
    if missing := _REQUIRED - arrays.keys():
        raise UserError(f"{printable(path)} lacks the array {min(missing)!r}")
    return FiniteMDP(**arrays)


def check_entries(whose: str, states: int, actions: int) -> None:
    """Reject sizes at which tables fit nowhere, before any is made."""
    if states * actions * states > MOST_ENTRIES:
        size = f"{shown(states)} states and {shown(actions)} actions"
        raise UserError(f"{whose} has {size}; tables [S, A, S] may have at most {MOST_ENTRIES} entries")


def _numbers(xp: Any, name: str, value: Any, dtype: type = float) -> Any:
    try:
        return xp.asarray(value, dtype)
    except (TypeError, ValueError):
        raise UserError(f"{name} is not an array of numbers") from None


def _as_rewards(name: str, array: Any, shape: tuple[int, ...]) -> Any:
    fitted = array[:, :, None] if array.ndim == 2 else array
    if fitted.ndim not in (0, 3) or any(n not in (1, m) for n, m in zip(fitted.shape, shape, strict=False)):
        raise UserError(f"{name} must fit [S, A, S] = {list(shape)} or [S, A], not {list(array.shape)}")
    return fitted + (np.zeros(shape) if isinstance(fitted, np.ndarray) else jnp.zeros(shape))


def _of_shape(name: str, array: Any, shape: tuple[int, ...]) -> Any:
    if array.shape != shape:
        raise UserError(f"{name} must have shape {list(shape)}, not {list(array.shape)}")
    return array


def _check(
    transition: np.ndarray,
    reward_mean: np.ndarray,
    reward_sd: np.ndarray,
    start: np.ndarray,
    terminal: np.ndarray,
    allowed: np.ndarray,
    discount: np.ndarray,
) -> None:
    _check_rows("transition", transition)
    _check_finite("reward_mean", reward_mean)
    _check_finite("reward_sd", reward_sd)
    if (reward_sd < 0).any():
        raise UserError(f"reward_sd{_first(reward_sd < 0)} is negative")
    _check_rows("start", start)
    if (start > 0)[terminal].any():
        raise UserError("start gives weight to a terminal state; an episode cannot begin at its end")
    barren = np.asarray(~allowed.any(axis=1))
    if barren.any():
        raise UserError(f"allowed{_first(barren)} has no action; every state needs at least one")
    if not 0 <= float(discount) < 1:
        raise UserError(f"discount must be in [0, 1), not {float(discount):g}")


def _check_rows(name: str, table: np.ndarray) -> None:
    _check_finite(name, table)
    if (table < 0).any():
        raise UserError(f"{name}{_first(table < 0)} is negative: {table[table < 0][0]:g}")
    total = table.sum(axis=-1)
    bad = np.asarray(np.abs(total - 1) > 1e-4)
    if bad.any():
        raise UserError(f"{name}{_first(bad)} sums to {np.asarray(total)[bad].flat[0]:.6g}, not to 1")


def _check_finite(name: str, table: np.ndarray) -> None:
    bad = np.asarray(~np.isfinite(table))
    if bad.any():
        raise UserError(f"{name}{_first(bad)} is {table[bad].flat[0]}")


def _first(bad: np.ndarray) -> str:
    """The index of the first bad entry, as it would be written in Python."""
    return str([int(i) for i in np.argwhere(bad)[0]]) if bad.ndim else ""
