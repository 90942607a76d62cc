"""How environments are made: again and again from an id or a spec, from a factory, or the one the user gave."""

import contextlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import TimeLimit

from cdpo.errors import UserError
from cdpo.tasks.base import Environment, Make
from cdpo.tasks.compat import choose_gl, without_deprecations, without_warnings


@dataclass(frozen=True)
class Maker:
    """Makes environments by Gymnasium, with a time limit of `horizon` steps (None: the registered one, if any)."""

    target: str | EnvSpec
    horizon: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, render_mode: str | None = None) -> Environment:
        """A new environment."""
        spec = gymnasium.registry.get(self.target) if isinstance(self.target, str) else self.target
        settings = dict(self.settings)
        if render_mode is not None or (spec is not None and "render_mode" in spec.kwargs):
            settings["render_mode"] = render_mode  # a spec taken from an environment may ask for pictures
        if render_mode not in (None, "human"):
            choose_gl()
        foreign_mujoco = spec is not None and str(spec.entry_point).startswith("gymnasium.envs.mujoco")
        with without_warnings(), without_deprecations() if foreign_mujoco else contextlib.nullcontext():
            return gymnasium.make(self.target, max_episode_steps=self.horizon, disable_env_checker=True, **settings)


@dataclass(frozen=True)
class FromFactory:
    """Makes environments by the user's own function."""

    factory: Callable[..., Environment]

    def __call__(self, render_mode: str | None = None) -> Environment:
        """A new environment; the factory is asked for pictures only if it can be."""
        if render_mode is not None:
            choose_gl()
        env = self.factory(render_mode=render_mode) if render_mode and _takes_mode(self.factory) else self.factory()
        if not isinstance(env, gymnasium.Env):
            raise UserError(f"the factory gave a {type(env).__name__}; it must return a gymnasium.Env")
        return _showing(env, render_mode, "let the factory take render_mode")


@dataclass(frozen=True)
class Shared:
    """Always the one environment the user gave."""

    env: Environment

    def __call__(self, render_mode: str | None = None) -> Environment:
        """That environment."""
        return _showing(self.env, render_mode, f"make it with render_mode={render_mode!r}, or give a factory")


@dataclass(frozen=True)
class Limited:
    """Ends what another makes after `horizon` steps."""

    make: Make
    horizon: int

    def __call__(self, render_mode: str | None = None) -> Environment:
        """A new environment, or the shared one."""
        return TimeLimit(self.make(render_mode), self.horizon)


def time_limit(env: Environment) -> int | None:
    """The steps after which an environment truncates its episodes, as far as it tells."""
    limits = [env.spec.max_episode_steps] if env.spec is not None else []
    inner = env
    while isinstance(inner, gymnasium.Wrapper):
        if isinstance(inner, TimeLimit):
            limits.append(inner._max_episode_steps)
        inner = inner.env
    return min((limit for limit in limits if limit is not None), default=None)


def _takes_mode(factory: Callable[..., Environment]) -> bool:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # some callables have no signature
        return False
    return any(each.name == "render_mode" or each.kind == each.VAR_KEYWORD for each in parameters)


def _showing(env: Environment, render_mode: str | None, advice: str) -> Environment:
    if render_mode is not None and env.render_mode != render_mode:
        raise UserError(f"the environment cannot give pictures (render_mode is {env.render_mode!r}); {advice}")
    return env
