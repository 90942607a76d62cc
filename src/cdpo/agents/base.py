"""What every agent is: settings that set it apart, what it knows, and one iteration of learning, for one seed."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

import equinox as eqx
import jax
from jax import Array

from cdpo.dynamics.replay import Replay
from cdpo.solvers.base import Metrics, Starts
from cdpo.solvers.policy import Policy
from cdpo.told import Told

# On a GPU, tuning kernels of its own for every small product takes XLA minutes; the vendor's are ready at once.
program = partial(jax.jit, compiler_options={"xla_gpu_enable_triton_gemm": False})


@dataclass(frozen=True)
class Rule(Told, ABC):
    """What sets an agent apart from others; the fields of its dataclass are settings."""

    name: ClassVar[str]
    part: ClassVar[str]
    """By which the command line reaches the fields: --PART.FIELD."""
    uses: ClassVar[tuple[str, ...]]
    """The other parts of the settings that say anything to the agent, but for those of its solver."""


class Mind(Protocol):
    """All that one seed has learned: a named tuple, as every kind of agent needs it."""

    @property
    def policy(self) -> Policy:
        """That acts."""

    def _replace(self, *, policy: Policy) -> Any: ...


class Agent(eqx.Module):
    """Everything of an agent that is not learned. `learn` is pure; seeds are mapped over it from outside."""

    @abstractmethod
    def begin(self, hidden: tuple[int, ...], key: Array) -> Any:
        """The mind before any data; `hidden` are the layers of the policy."""

    @abstractmethod
    def learn(self, mind: Any, replay: Replay, starts: Starts, iteration: Array, key: Array) -> tuple[Any, Metrics]:
        """Between two stretches of real steps, from all rows of the replay; `key` is the seed's, always the same."""

    @abstractmethod
    def judge(self, mind: Any, replay: Replay, count: Array) -> Metrics:
        """What was believed, against the last `count` rows, which nothing was learned from yet."""

    @abstractmethod
    def parts(self, mind: Any) -> dict[str, Any]:
        """What a number that is not finite would spoil, in the order in which one spoils the next."""
