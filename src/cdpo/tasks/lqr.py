"""A linear system with quadratic costs, whose optimum is known (`cdpo.tasks.riccati`)."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box

from cdpo.errors import UserError
from cdpo.tasks.riccati import System

# The first part runs away by itself, slowly, and is pushed by the second, the second by the third. The actions reach
# each part, and the third in opposite ways.
SYSTEM = System(
    A=np.array([[1.01, 0.1, 0.0], [0.0, 0.9, 0.2], [0.0, 0.0, 0.8]]),
    B=np.array([[0.2, 0.0], [0.0, 0.3], [0.1, -0.2]]),
    Q=np.eye(3),
    R=np.eye(2),
    noise=0.02,
)
START = np.eye(3) / 3  # E[s s'] of initial states, uniform in [-1, 1]^3
BOUND = 2.0  # of an action; the best policy stays within


class LQR(gymnasium.Env[np.ndarray, np.ndarray]):
    """Bring a noisy linear system to rest, and hold it there."""

    def __init__(self, render_mode: str | None = None) -> None:
        if render_mode is not None:
            raise UserError("lqr has no picture: there is nothing to see; leave render_mode out")
        self.observation_space = Box(-np.inf, np.inf, (3,), np.float64)
        self.action_space = Box(-BOUND, BOUND, (2,), np.float32)
        self._state = np.zeros(3)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Anywhere in [-1, 1]^3."""
        super().reset(seed=seed)
        return self.set_state(self.np_random.uniform(-1.0, 1.0, 3)), {}

    def set_state(self, state: np.ndarray) -> np.ndarray:
        """Goes on from the given state [3]; the observation there."""
        self._state = np.array(state, float)
        return self._state.copy()

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """The costs are those of the state before the step, and of the action as it was asked for."""
        asked = np.asarray(action, float)
        reward = -SYSTEM.cost(self._state, asked)
        pushed = np.clip(asked, -BOUND, BOUND)
        following = SYSTEM.step(self._state, pushed, self.np_random.standard_normal(3))
        return self.set_state(following), reward, False, False, {}
