"""From whatever the user names or gives to a Task."""

import contextlib
import dataclasses
import difflib
import importlib
from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium.envs.registration import EnvSpec, find_highest_version, get_env_id, parse_env_id
from gymnasium.spaces import Box

from cdpo.errors import UserError, shown, unknown
from cdpo.tasks.asking import close, told
from cdpo.tasks.base import Environment, Make, Task, Transition
from cdpo.tasks.compat import without_warnings
from cdpo.tasks.library import TASKS, pendulum_task
from cdpo.tasks.making import FromFactory, Limited, Maker, Shared, time_limit
from cdpo.tasks.registration import IDS
from cdpo.tasks.watching import Watched, Watching
from cdpo.told import MOST

_FLATTEN = "wrap it in gymnasium.wrappers.FlattenObservation"
_OURS = {task.make.target: task for task in reversed(TASKS.values()) if isinstance(task.make, Maker)}


def find_task(
    task: Any,
    *,
    reward: Transition | None = None,
    terminates: Transition | None = None,
    horizon: int | None = None,
    env_timeout: float | None = None,
) -> Task:
    """The Task that a user means.

    `task` is a task's name, a Gymnasium id, an environment, a function without arguments that returns one, or a Task.
    `reward` and `terminates` are functions of (s, a, s') that hold in it (see `Task`); on an environment that is not
    ours they are learned unless given. `horizon` sets the time limit of an episode, in steps. `env_timeout` are the
    seconds that a reset or a step of the environment may take; what takes longer is an error (see `Watched`).
    """
    if horizon is not None and (isinstance(horizon, bool) or not isinstance(horizon, int) or not 1 <= horizon <= MOST):
        raise UserError(f"horizon is a number of steps, at least 1 and at most {MOST}, not {shown(horizon)}")
    _check_timeout(env_timeout)
    found = _find(task, horizon)
    if horizon is not None and found.horizon != horizon:
        found = _limit(found, horizon)
    if found.horizon > MOST:
        raise UserError(f"{found.name} has episodes of {found.horizon} steps; give horizon, at most {MOST}")
    if env_timeout is not None:
        found = _watched(found, env_timeout)
    for name, function in (("reward", reward), ("terminates", terminates)):
        if function is not None:
            _check_function(found, name, function)
    if reward is None and terminates is None:
        return found
    return dataclasses.replace(found, reward=reward or found.reward, terminates=terminates or found.terminates)


def _find(task: Any, horizon: int | None) -> Task:
    if isinstance(task, Task):
        return task
    if isinstance(task, str):
        return TASKS[task] if task in TASKS else _from_spec(_spec(task), horizon)
    if isinstance(task, gymnasium.vector.VectorEnv):
        raise UserError(
            "a task is a single environment, not a vector of them; give its id or a function that makes one"
        )
    if isinstance(task, gymnasium.Env):
        return _from_env(task, horizon)
    if isinstance(task, EnvSpec):
        return _from_spec(task, horizon)
    if callable(task):
        return _foreign(FromFactory(task), horizon)
    raise UserError(
        "a task is a name, a Gymnasium id, an environment, a function that makes one, or a Task, "
        f"not a {type(task).__name__}"
    )


def _spec(name: str) -> EnvSpec:
    """What Gymnasium has registered under an id, which may lack a version or begin with a module to import."""
    module, colon, id = name.rpartition(":")
    if colon:
        try:
            importlib.import_module(module)
        except Exception as error:  # the module is the user's
            raise UserError(f"cannot import {module!r} for {name!r}: {told(error)}") from error
    if id not in gymnasium.registry:
        with contextlib.suppress(gymnasium.error.Error):
            space, bare, version = parse_env_id(id)
            if version is None:
                id = get_env_id(space, bare, find_highest_version(space, bare))
    if id in gymnasium.registry:
        return gymnasium.registry[id]
    everything = {each.lower(): each for each in (*gymnasium.registry, *TASKS)}
    near = difflib.get_close_matches(id.lower(), everything, n=1)
    if near and everything[near[0]] not in TASKS:
        raise UserError(f"unknown environment {name!r}; did you mean {everything[near[0]]!r}?")
    raise UserError(f"{unknown('task', name, TASKS)}, or a Gymnasium id")


def _from_spec(spec: EnvSpec, horizon: int | None) -> Task:
    return _ours(spec) or _foreign(Maker(spec, horizon), horizon, name=spec.id)


def _from_env(env: Environment, horizon: int | None) -> Task:
    """From an environment: further ones are built by its spec where that gives the same, else it is shared."""
    with without_warnings():  # of wrappers that do not say how they were made
        spec = env.spec
    if spec is not None:
        if (ours := _ours(spec)) is not None:
            return ours
        make = Maker(spec, horizon or time_limit(env))
        with contextlib.suppress(Exception):  # whatever it is, the environment itself still serves
            copy = make()
            same = copy.observation_space == env.observation_space and copy.action_space == env.action_space
            copy.close()
            if same:
                return _describe(env, make, make.horizon, spec.id)
    task = _describe(env, Shared(env), time_limit(env) or horizon, spec.id if spec else type(env.unwrapped).__name__)
    shared = dataclasses.replace(task, shared=True)
    return shared if time_limit(env) is not None else dataclasses.replace(shared, make=_limit_once(env, task.horizon))


def _ours(spec: EnvSpec) -> Task | None:
    """Our own task behind a spec, if nothing wrapped around it can have changed it."""
    settings = {key: value for key, value in spec.kwargs.items() if key != "render_mode"}
    if spec.id not in IDS or spec.additional_wrappers or set(settings) - {"penalty"}:
        return None
    task = pendulum_task(settings["penalty"]) if settings else _OURS[spec.id]
    named = next((each for each in TASKS.values() if each.make == task.make), task)
    limit = spec.max_episode_steps
    return named if limit in (None, named.horizon) else _limit(named, limit)


def _foreign(make: Make, horizon: int | None, name: str | None = None) -> Task:
    """From a way to make environments, by a look at one of them."""
    try:
        env = make()
    except UserError:
        raise
    except Exception as error:  # of the user's own, as when something is not plugged in
        raise UserError(f"cannot make {name or 'the environment'}: {told(error)}") from error
    try:
        limit = time_limit(env)
        label = name or (env.spec.id if env.spec else type(env.unwrapped).__name__)
        task = _describe(env, make, limit or horizon, label)
    finally:
        close(env)
    return task if limit is not None else dataclasses.replace(task, make=Limited(make, task.horizon))


def _limit(task: Task, horizon: int) -> Task:
    """The same task with another time limit."""
    if isinstance(task.make, Maker):
        return dataclasses.replace(task, horizon=horizon, make=dataclasses.replace(task.make, horizon=horizon))
    if horizon > task.horizon:
        raise UserError(
            f"{task.name} ends its episodes after {task.horizon} steps by itself, "
            f"before the horizon of {horizon}; make it with a longer time limit"
        )
    make = _limit_once(task.make(), horizon) if task.shared else Limited(task.make, horizon)
    return dataclasses.replace(task, horizon=horizon, make=make)


def _check_function(task: Task, name: str, function: Transition) -> None:
    """Of (s, a, s'), by their shapes alone, as nothing is known of their numbers yet."""
    lead = (2, task.observations + 1)  # as no other axis is
    s, a = (jax.ShapeDtypeStruct((*lead, size), np.float32) for size in (task.observations, task.actions))
    try:
        shape = jax.eval_shape(function, s, a, s).shape
    except Exception as error:  # the function is the user's: whatever it raises is what is wrong
        raise UserError(f"{name} fails for {task.name}: {told(error)}; it is a JAX function of (s, a, s')") from error
    if shape != lead:
        raise UserError(f"{name} gives shape {shape} for {lead} transitions of {task.name}; it gives one number each")


def _check_timeout(seconds: float | None) -> None:
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if seconds is not None and not (number and 0 < seconds <= MOST):
        raise UserError(f"env_timeout is a number of seconds, above 0 and at most {MOST}, not {shown(seconds)}")


def _watched(task: Task, seconds: float) -> Task:
    """The same task with a watchdog; one environment that is shared has one, which knows when it went silent."""
    make = Shared(Watched(task.make(), seconds)) if task.shared else Watching(task.make, seconds)
    return dataclasses.replace(task, make=make)


def _limit_once(env: Environment, horizon: int) -> Make:
    return Shared(gymnasium.wrappers.TimeLimit(env, horizon))


def _describe(env: Environment, make: Make, horizon: int | None, name: str) -> Task:
    """The Task of an environment that is not ours, or the error that says why it cannot be one."""
    seen, acted = (getattr(env, space, None) for space in ("observation_space", "action_space"))
    if not isinstance(seen, Box):
        raise UserError(f"{name} observes a {type(seen).__name__}, not a vector of numbers; {_FLATTEN}")
    if len(seen.shape) != 1:
        raise UserError(f"{name} observes an array of shape {seen.shape}, not a vector; {_FLATTEN}")
    if not isinstance(acted, Box) or not np.issubdtype(acted.dtype, np.floating):
        kind = "Box of integers" if isinstance(acted, Box) else type(acted).__name__
        raise UserError(f"{name} acts in a {kind}; give an environment with continuous actions (a Box of floats)")
    wrap = "wrap it in gymnasium.wrappers.TransformAction"
    if len(acted.shape) != 1:
        raise UserError(f"{name} acts by an array of shape {acted.shape}, not a vector; {wrap}")
    if 0 in (*seen.shape, *acted.shape):
        raise UserError(
            f"{name} has {'no observations' if 0 in seen.shape else 'no actions'}; there is nothing to learn"
        )
    low, high = acted.low.astype(np.float32), acted.high.astype(np.float32)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise UserError(f"{name} has actions without bounds; {wrap} with a Box of finite bounds")
    if not (low < high).all():
        raise UserError(
            f"{name} has actions whose bounds leave no choice (low {low}, high {high}); {wrap} to mend them"
        )
    if horizon is None:
        raise UserError(f"{name} has no time limit; give horizon, the number of steps after which an episode ends")
    return Task(name, make, seen.shape[0], low, high, horizon)
