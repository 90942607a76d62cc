"""What the rest of the library knows of a task."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeVar

import gymnasium
import numpy as np
from jax import Array

Environment = gymnasium.Env[Any, Any]
Numbers = TypeVar("Numbers", np.ndarray, Array)
Transition = Callable[[Array, Array, Array], Array]
"""A function of s [..., n], a [..., m] and s' [..., n] that gives one number [...]; a in the environment's units."""


class Make(Protocol):
    """Builds a new environment, its time limit included."""

    def __call__(self, render_mode: str | None = None) -> Environment:
        """A new environment."""


def identity(observation: Array) -> Array:
    """The observation as it is."""
    return observation


@dataclass(frozen=True, eq=False)
class Task:
    """What is controlled: a real environment, and what the agent knows of it."""

    name: str
    make: Make
    observations: int
    """Size n of an observation."""
    low: np.ndarray
    """Lower bounds of the actions [m], float32, finite."""
    high: np.ndarray
    """Upper bounds of the actions [m], float32, finite."""
    horizon: int
    """Time limit of an episode, in steps."""
    reward: Transition | None = None
    """r(s, a, s'), differentiable; None: to be learned."""
    terminates: Transition | None = None
    """Whether (s, a, s') ends the episode, boolean; None: to be learned. The time limit is no end."""
    features: Callable[[Array], Array] = identity
    """What networks see of an observation, [..., n] -> [..., k], of NumPy arrays as of JAX arrays."""
    broad: tuple[np.ndarray, np.ndarray] | None = None
    """Bounds [n] of observations worth beginning imagined rollouts at, every one of them valid; None: none known."""
    shared: bool = False
    """`make` always returns the same environment: the one the user gave, which cannot be built again."""

    @property
    def actions(self) -> int:
        """Size m of an action."""
        return len(self.low)

    def scaled(self, action: Numbers) -> Numbers:
        """Actions [..., m] in the environment's units, in those of policies and models: [-1, 1]."""
        return (action - self._middle) / self._half

    def unscaled(self, action: Numbers) -> Numbers:
        """Actions [..., m] in [-1, 1], in the environment's units."""
        return self._middle + self._half * action

    @cached_property
    def _middle(self) -> np.ndarray:
        return (self.high + self.low) / 2

    @cached_property
    def _half(self) -> np.ndarray:
        return (self.high - self.low) / 2
