"""The swing-up of a torque-limited pendulum, stepped in plain Python: a few microseconds per step."""

from math import cos, exp, log, pi, sin
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box

MASS, LENGTH, DAMPING, GRAVITY, DT = 0.3, 0.5, 0.005, 9.81, 1 / 80
SWING = GRAVITY / LENGTH
TORQUE = 1 / (MASS * LENGTH**2)
FRICTION = DAMPING * TORQUE


def _tolerance(value: float, low: float, high: float, margin: float) -> float:
    """1 within [low, high], outside a Gaussian that falls to 0.1 at one margin."""
    outside = max(low - value, value - high, 0.0) / margin
    return exp(log(0.1) * outside**2)


class PendulumSwingup(gymnasium.Env[np.ndarray, np.ndarray]):
    """Swing a pendulum up from rest and hold it there; with a penalty, doing nothing beats trying by chance.

    The observation is (theta, theta'), theta = 0 upright and not wrapped, so that one step changes it little. The
    integrator is semi-implicit Euler: theta' first, and theta by the new theta'.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 80}  # noqa: RUF012  Gymnasium's convention

    def __init__(self, penalty: float = 0.0, render_mode: str | None = None):
        self.penalty = penalty
        self.render_mode = render_mode
        self.observation_space = Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = Box(-1.0, 1.0, (1,), np.float32)
        self._angle, self._velocity = pi, 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Hanging at rest, always."""
        super().reset(seed=seed)
        return self.set_state(pi, 0.0), {}

    def set_state(self, angle: float, velocity: float) -> np.ndarray:
        """Goes on from the given state; the observation there."""
        self._angle, self._velocity = float(angle), float(velocity)
        return np.array((self._angle, self._velocity))

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One step of 1/80 s. The reward judges the state after it."""
        asked = float(action[0])
        torque = min(max(asked, -1.0), 1.0)
        self._velocity += DT * (SWING * sin(self._angle) + TORQUE * torque - FRICTION * self._velocity)
        self._angle += DT * self._velocity
        upright = _tolerance(cos(self._angle), 0.95, 1.0, 0.1) * _tolerance(self._velocity, -0.5, 0.5, 0.5)
        reward = upright + self.penalty * (_tolerance(asked, -0.1, 0.1, 0.1) - 1)
        return np.array((self._angle, self._velocity)), reward, False, False, {}

    def render(self) -> np.ndarray | None:
        """A picture [240, 240, 3] of uint8 where asked for, drawn by distances: no OpenGL needed."""
        if self.render_mode is None:
            return None
        size, sharp = 240, 100.0  # pixels on a side; pixels per unit of length, as sharp as one pixel
        grid = (np.arange(size) - (size - 1) / 2) / sharp
        x, y = grid[None, :], -grid[:, None]  # y points up, rows point down
        tip = np.array((sin(self._angle), cos(self._angle)))
        along = np.clip(x * tip[0] + y * tip[1], 0.0, 1.0)
        rod = np.hypot(x - along * tip[0], y - along * tip[1]) - 0.05
        bob = np.hypot(x - tip[0], y - tip[1]) - 0.13
        pivot = np.hypot(x, y) - 0.03
        picture = np.full((size, size, 3), 255.0)
        for distance, colour in ((rod, (204, 77, 77)), (bob, (153, 40, 40)), (pivot, (20, 20, 20))):
            cover = np.clip(0.5 - sharp * distance, 0.0, 1.0)[..., None]
            picture = picture * (1 - cover) + cover * np.array(colour, float)
        return picture.round().astype(np.uint8)
