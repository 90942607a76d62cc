"""Everything that an agent is told."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cdpo.agents import (
    CDPO,
    RULES,
    Agent,
    Exploration,
    Kit,
    ModelBased,
    Newest,
    OffPolicy,
    OnPolicy,
    Replaying,
    Rule,
)
from cdpo.dynamics.ensemble import EnsembleSettings
from cdpo.errors import UserError, check_choices, shown, unknown
from cdpo.solvers.actor_critic import ActorCritic, ActorCriticSettings
from cdpo.solvers.base import Solver, StartSettings
from cdpo.solvers.bptt import BPTT, BPTTSettings
from cdpo.solvers.dyna import Dyna, DynaSettings
from cdpo.solvers.learner import LearnerSettings
from cdpo.solvers.mpc import MPC, MPCSettings
from cdpo.solvers.mpo import MPO, MPOSettings
from cdpo.solvers.offpolicy import OffPolicyLearner
from cdpo.solvers.onpolicy import OnPolicyLearner, OnPolicySettings
from cdpo.solvers.ppo import PPO, PPOSettings
from cdpo.solvers.sac import SAC, SACSettings
from cdpo.solvers.trpo import TRPO, TRPOSettings
from cdpo.solvers.values import CriticSettings
from cdpo.tasks import Task
from cdpo.told import MOST, changed

SolverName = Literal["dyna", "bptt", "mpc"]
LearnerName = Literal["sac", "mpo", "ppo", "trpo", "actor-critic"]
LEARNERS: dict[str, type[OffPolicyLearner | OnPolicyLearner]] = {
    "sac": SAC,
    "mpo": MPO,
    "ppo": PPO,
    "trpo": TRPO,
    "actor-critic": ActorCritic,
}


@dataclass(frozen=True)
class LoopSettings:
    """What happens around an iteration."""

    discount: float = 0.99
    """Of the values that are optimised; returns are not discounted."""
    evaluate: int = 1
    """Episodes between evaluations; the last episode of a run is always evaluated."""
    evaluation_episodes: int = 5
    """Episodes of an evaluation, by the policy's mode."""
    noise: Literal["pink", "white"] = "pink"
    """Of a policy's actions in training episodes; at small time steps white noise averages out and moves nothing."""
    random: int = 1
    """Episodes of uniform actions at first, before anything is learned."""
    random_noise: Literal["pink", "white"] = "pink"
    """How these actions follow each other; white ones, each drawn by itself, move little at small time steps."""
    stretch: int = 0
    """Real steps after which an agent learns, within episodes too, and at their ends; 0: at their ends alone."""

    def __post_init__(self) -> None:
        """Reject settings outside their range."""
        check_choices(self)
        if not 0 <= self.discount < 1:
            raise UserError(f"loop.discount must be at least 0 and below 1, not {self.discount:g}")
        if self.evaluate < 1:  # so many that there is none are no mistake
            raise UserError(f"loop.evaluate must be at least 1, not {self.evaluate}")
        for name in ("evaluation_episodes", "random"):
            if not 1 <= getattr(self, name) <= MOST:
                raise UserError(f"loop.{name} must be between 1 and {MOST}, not {getattr(self, name)}")
        if not 0 <= self.stretch <= MOST:
            raise UserError(f"loop.stretch must be between 0 and {MOST}, not {self.stretch}")

    def check_learns(self, episodes: int) -> None:
        """Reject so few episodes after the first that all are random."""
        if episodes < self.random:
            raise UserError(
                f"episodes must be at least loop.random, {self.random}, not {episodes}; with fewer nothing is learned"
            )


@dataclass(frozen=True)
class Settings:
    """By part; the command line reaches them as --ensemble.heads, --dyna.horizon, --cdpo.kl and so on."""

    rule: Rule = CDPO()
    solver: SolverName = "dyna"
    learner: LearnerName = "sac"
    loop: LoopSettings = LoopSettings()
    ensemble: EnsembleSettings = EnsembleSettings()
    dyna: DynaSettings = DynaSettings()
    sac: SACSettings = SACSettings()
    mpo: MPOSettings = MPOSettings()
    ppo: PPOSettings = PPOSettings()
    trpo: TRPOSettings = TRPOSettings()
    actor_critic: ActorCriticSettings = ActorCriticSettings()
    bptt: BPTTSettings = BPTTSettings()
    mpc: MPCSettings = MPCSettings()

    def __post_init__(self) -> None:
        """Reject what does not exist."""
        check_choices(self)

    def agent(self, task: Task) -> Agent:
        """The agent that follows these settings; a UserError if it would be larger than any machine."""
        discount = self.loop.discount
        if isinstance(self.rule, OffPolicy):
            learner = self._learner(self.rule.name)
            assert isinstance(learner, OffPolicyLearner)
            return Replaying(task, discount, self.rule, learner)
        if isinstance(self.rule, OnPolicy):
            learner = self._learner(self.rule.name)
            assert isinstance(learner, OnPolicyLearner)
            return Newest(task, discount, self.rule, learner)
        assert isinstance(self.rule, Exploration)
        return ModelBased(self.rule, Kit(task, self.ensemble, self.rule.solver(self._solver()), discount))

    def _solver(self) -> Solver:
        if "bptt" in self.parts:
            return BPTT(self.bptt)
        if "mpc" in self.parts:
            return MPC(self.mpc)
        return Dyna(self.dyna, self._learner(learner_of(self.parts)))

    def _learner(self, name: str) -> OffPolicyLearner | OnPolicyLearner:
        return LEARNERS[name](getattr(self, part_of(name)))

    @property
    def parts(self) -> tuple[str, ...]:
        """That say anything to this agent."""
        return parts_of(type(self.rule), self.solver, self.learner)

    @property
    def hidden(self) -> tuple[int, ...]:
        """Hidden layers of the policy: those of what optimises it."""
        told = [getattr(self, part) for part in self.parts]
        [optimiser] = [each for each in told if isinstance(each, LearnerSettings | CriticSettings)]
        return optimiser.hidden

    @property
    def starts(self) -> StartSettings:
        """Where rollouts begin; of an agent that makes none, whatever dyna says."""
        told = [getattr(self, part) for part in self.parts]
        return next((each for each in told if isinstance(each, StartSettings)), self.dyna)

    def changed(self, **changes: Any) -> "Settings":
        """With other values: each keyword is a part, and its value a part or a dictionary of some of its fields."""
        parts = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        for name, change in changes.items():
            if name not in parts:
                raise unknown("part of the settings", name, parts)
            old = parts[name]
            if isinstance(change, dict) and dataclasses.is_dataclass(old):
                parts[name] = changed(getattr(old, "part", name), old, change)
            elif isinstance(change, Rule if name == "rule" else type(old)):
                parts[name] = change
            else:
                kind = type(old).__name__
                raise UserError(
                    f"{name} must be {'a word' if kind == 'str' else f'a dict or {kind}'}, not {shown(change)}"
                )
        return Settings(**parts)

    def to_json(self) -> dict[str, Any]:
        """As plain values; those that say nothing to the agent are left out."""
        told = dataclasses.asdict(self)
        rule = {"name": self.rule.name, **dataclasses.asdict(self.rule)}
        return {"rule": rule, **{name: told[name] for name in self.parts}}

    @classmethod
    def from_json(cls, values: Any) -> "Settings":
        """What `to_json` wrote; a UserError for anything else."""
        try:
            values = dict(values)
            rule = dict(values.pop("rule"))
            start = cls(rule=RULES[rule.pop("name")]())
            return start.changed(rule=rule, **values)
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise UserError("the settings of the run cannot be read; start it again elsewhere") from error


# What a learner on the newest rollouts makes no use of: how past ones, and real steps, are recalled.
_RECALLED = ("kept", "earlier", "updates", "returns", "batch", "real", "expansion", "expanded")

PARTS = tuple(field.name for field in dataclasses.fields(Settings) if field.name != "rule")


def parts_of(rule: type[Rule], solver: str, learner: str) -> tuple[str, ...]:
    """The parts of the settings that say anything to an agent with this rule, and this solver and learner if any."""
    if "solver" not in rule.uses:
        return rule.uses
    return (*rule.uses, *(("dyna", "learner", part_of(learner)) if solver == "dyna" else (solver,)))


def part_of(learner: str) -> str:
    """The part of the settings that is a learner's own."""
    if learner not in LEARNERS:
        raise unknown("learner", learner, LEARNERS)
    return learner.replace("-", "_")


def learner_of(parts: Sequence[str]) -> str:
    """The learner inside dyna, by its part."""
    [learner] = [name for name in LEARNERS if part_of(name) in parts]
    return learner


def idle_options(settings: Settings) -> list[tuple[str, str]]:
    """Part and name of the settings that say nothing to the agent, as others are."""
    parts = settings.parts
    idle = []
    if "dyna" in parts and issubclass(LEARNERS[learner_of(parts)], OnPolicyLearner):
        idle += [("dyna", name) for name in _RECALLED]
    if "sac" in parts:
        idle.append(("sac", "deviation" if settings.sac.holds == "entropy" else "negentropy"))
    for part in parts:
        told = getattr(settings, part)
        if isinstance(told, OnPolicySettings) and told.noise == "learned":
            idle.append((part, "deviation"))
        if isinstance(told, LearnerSettings) and not isinstance(settings.rule, Exploration):  # there are no models
            idle.append((part, "critic"))
        if hasattr(told, "multiplier_rate") and not hasattr(settings.rule, "kl"):  # there is no trust region
            idle.append((part, "multiplier_rate"))
    return idle
