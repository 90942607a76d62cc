"""The tasks whose physics is MuJoCo's: Gymnasium's models, with the observations and rewards of the paper's tasks."""

from collections.abc import Mapping
from typing import Any, ClassVar

import mujoco  # type: ignore[import-untyped]
import numpy as np
from gymnasium.envs.mujoco.mujoco_env import MujocoEnv
from gymnasium.spaces import Box

from cdpo.tasks.compat import check_gl, choose_gl, without_deprecations

Step = tuple[np.ndarray, Any, bool, bool, dict[str, Any]]  # observation, reward, terminated, truncated, info


class Physics(MujocoEnv):
    """What the tasks share: loading a model, stepping it and drawing it. Rewards use the action as it is given."""

    metadata: dict[str, Any] = {"render_modes": ["human", "rgb_array"]}  # noqa: RUF012  Gymnasium's convention
    asset: ClassVar[str]
    skip: ClassVar[int]
    size: ClassVar[int]
    camera: ClassVar[Mapping[str, float]]

    def __init__(self, render_mode: str | None = None):
        if render_mode not in (None, "human"):
            choose_gl()
        space = Box(-np.inf, np.inf, (self.size,), np.float64)
        super().__init__(self.asset, self.skip, space, render_mode=render_mode, default_camera_config=dict(self.camera))
        # Views into MuJoCo's memory: looking one up anew costs as much as the arithmetic on it.
        self._position, self._velocity, self._control = self.data.qpos, self.data.qvel, self.data.ctrl

    def _edit(self, spec: mujoco.MjSpec) -> None:
        """What a task changes in Gymnasium's model."""

    def _initialize_simulation(self) -> tuple[mujoco.MjModel, mujoco.MjData]:
        with without_deprecations():
            spec = mujoco.MjSpec.from_file(self.fullpath)
            self._edit(spec)
            model = spec.compile()
        model.vis.global_.offwidth = max(model.vis.global_.offwidth, self.width)
        model.vis.global_.offheight = max(model.vis.global_.offheight, self.height)
        return model, mujoco.MjData(model)

    def _advance(self, action: np.ndarray) -> np.ndarray:
        """Holds the action for one step; gives it back as an array of float64."""
        action = np.asarray(action, np.float64)
        if action.shape != self._control.shape:
            raise ValueError(f"an action has shape {self._control.shape} here, not {action.shape}")
        self._control[:] = action
        mujoco.mj_step(self.model, self.data, self.skip)
        if self.render_mode == "human":
            self.render()
        return action

    def render(self) -> Any:
        """A picture [480, 480, 3] of uint8, or a window."""
        if self.render_mode is None:
            return None
        if self.render_mode == "rgb_array" and self.mujoco_renderer.viewer is None:
            check_gl()
        return super().render()

    def close(self) -> None:
        """Gives back what drawing took; more than once does no harm."""
        super().close()


class InvertedPendulum(Physics):
    """Balance a pole on a cart. Observation: the cart's place, the pole's angle, their velocities."""

    metadata: dict[str, Any] = {**Physics.metadata, "render_fps": 25}  # noqa: RUF012
    asset, skip, size = "inverted_pendulum.xml", 2, 4
    camera: ClassVar = {"trackbodyid": 0, "distance": 2.04}

    start: ClassVar[tuple[float, float]] = (0.0, 0.0)

    def reset_model(self) -> np.ndarray:
        """Within 0.01 of the start at rest, in each coordinate."""
        position = self.start + self.np_random.uniform(-0.01, 0.01, 2)
        self.set_state(position, self.np_random.uniform(-0.01, 0.01, 2))
        return self._observe()

    def _observe(self) -> np.ndarray:
        return np.concatenate((self._position, self._velocity))

    def step(self, action: np.ndarray) -> Step:
        """One step of 0.04 s. The step on which the pole falls pays no 1, and costs its action."""
        action = self._advance(action)
        observation = self._observe()
        up = bool(abs(observation[1]) < 0.2)
        return observation, float(up) - 0.001 * float(action @ action), not up, False, {}


class CartpoleSwingup(InvertedPendulum):
    """The same cart and pole, begun hanging down. The angle is not wrapped; 0 is upright."""

    start = (0.0, np.pi)
    length: ClassVar[float] = 0.6  # of the pole in the model

    def _edit(self, spec: mujoco.MjSpec) -> None:
        spec.joint("hinge").limited = mujoco.mjtLimited.mjLIMITED_FALSE

    def step(self, action: np.ndarray) -> Step:
        """One step of 0.04 s. The reward judges how near the pole's tip is to its place when balanced at the middle."""
        action = self._advance(action)
        observation = self._observe()
        place, angle = observation[0], observation[1]
        across = place + self.length * np.sin(angle)
        below = self.length * (1 - np.cos(angle))
        reward = np.exp(-(across * across + below * below) / 0.6**2) - 0.001 * (action @ action)
        return observation, float(reward), False, False, {}


class Pusher(Physics):
    """Push an object to a goal with an arm of seven joints.

    Observation: the joints' 7 angles and 7 velocities, then the places [3] of the finger tip, the object and the goal.
    As in Gymnasium's Pusher-v5, the places are those at the beginning of the step's last 0.01 s.
    """

    metadata: dict[str, Any] = {**Physics.metadata, "render_fps": 20}  # noqa: RUF012
    asset, skip, size = "pusher_v5.xml", 5, 23
    camera: ClassVar = {"trackbodyid": -1, "distance": 4.0}

    def __init__(self, render_mode: str | None = None):
        super().__init__(render_mode)
        self._tip, self._object, self._goal = (self.data.body(n).xpos for n in ("tips_arm", "object", "goal"))

    def reset_model(self) -> np.ndarray:
        """The arm straight and nearly at rest; the object drawn anew; the goal always the same.

        The object's two coordinates are its slides in the model's order, of which the first points along the world's y.
        """
        while True:
            place = np.concatenate((self.np_random.uniform(-0.3, 0, 1), self.np_random.uniform(-0.2, 0.2, 1)))
            if np.hypot(*place) > 0.17:
                break
        position = self.init_qpos.copy()
        position[-4:-2] = place
        position[-2:] = 0
        velocity = self.init_qvel + self.np_random.uniform(-0.005, 0.005, self.model.nv)
        velocity[-4:] = 0
        self.set_state(position, velocity)
        return self._observe()

    def _observe(self) -> np.ndarray:
        return np.concatenate((self._position[:7], self._velocity[:7], self._tip, self._object, self._goal))

    def step(self, action: np.ndarray) -> Step:
        """One step of 0.05 s."""
        action = self._advance(action)
        away, near = self._object - self._goal, self._object - self._tip
        reward = -np.sqrt(away @ away) - 0.5 * np.sqrt(near @ near) - 0.1 * (action @ action)
        return self._observe(), float(reward), False, False, {}


class HalfCheetah(Physics):
    """Run forward on two legs.

    Observation: the forward velocity over the last step, (x - x before)/0.05, 0 after a reset; then the 8 positions
    but x, and the 9 velocities.
    """

    metadata: dict[str, Any] = {**Physics.metadata, "render_fps": 20}  # noqa: RUF012
    asset, skip, size = "half_cheetah.xml", 5, 18
    camera: ClassVar = {"type": mujoco.mjtCamera.mjCAMERA_TRACKING, "trackbodyid": 1, "distance": 4.0}  # runs along

    def reset_model(self) -> np.ndarray:
        """Near standing still, at x = 0."""
        position = self.init_qpos + self.np_random.uniform(-0.1, 0.1, self.model.nq)
        position[0] = 0
        self.set_state(position, self.init_qvel + 0.1 * self.np_random.standard_normal(self.model.nv))
        return self._observe(0.0)

    def _observe(self, forward: float) -> np.ndarray:
        observation = np.empty(18)
        observation[0] = forward
        observation[1:9] = self._position[1:]
        observation[9:] = self._velocity
        return observation

    def step(self, action: np.ndarray) -> Step:
        """One step of 0.05 s."""
        before = self._position[0]
        action = self._advance(action)
        forward = float(self._position[0] - before) / 0.05
        return self._observe(forward), forward - 0.1 * float(action @ action), False, False, {}
