"""`cdpo train | evaluate | check-env`."""

import dataclasses
import json
import math
import re
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from cdpo.agents import CDPO, DPI, HUCRL, MBPO, METRPO, PSRL, RULES, SLBO, Greedy, OffPolicy, OnPolicy, Rule
from cdpo.api import Seed, load
from cdpo.commands.base import STOPPED, aligned, explained, say
from cdpo.dynamics.ensemble import EnsembleSettings
from cdpo.errors import UserError, unknown
from cdpo.progress import Progress
from cdpo.report import write_figures
from cdpo.report.training.run import final_return
from cdpo.runs import RunFolder, check_free
from cdpo.solvers.actor_critic import ActorCriticSettings
from cdpo.solvers.bptt import BPTTSettings
from cdpo.solvers.dyna import DynaSettings
from cdpo.solvers.mpc import MPCSettings
from cdpo.solvers.mpo import MPOSettings
from cdpo.solvers.ppo import PPOSettings
from cdpo.solvers.sac import SACSettings
from cdpo.solvers.trpo import TRPOSettings
from cdpo.tasks import Task, check_task, find_task
from cdpo.terminal import printable
from cdpo.training.config import episodes_of, is_done, run_config, seed_numbers, seeds_of, settings_of, task_of
from cdpo.training.loop import Trainer
from cdpo.training.memory import warn_if_short
from cdpo.training.presets import preset
from cdpo.training.run import journal, returns_note, set_aside, train
from cdpo.training.settings import PARTS, LoopSettings, Settings, SolverName, idle_options, parts_of

_MOST = 10**6


@dataclasses.dataclass(frozen=True)
class Train:
    """Train an agent on a task, all seeds side by side, and write a run folder.

    What is not given comes from the preset of the task (--preset): see cdpo train TASK --help, or config.json of a run.
    """

    task: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="TASK")]
    """A task of the paper (inverted-pendulum, cartpole-swingup, pendulum-swingup, pendulum-swingup-0.1,
    pendulum-swingup-0.2, pusher, half-cheetah), lqr, or any Gymnasium id with continuous actions."""
    agent: str = "cdpo"
    """cdpo, greedy, psrl, hucrl, mbpo, me-trpo, slbo or dpi; sac, mpo or ppo, without a model."""
    solver: SolverName = "dyna"
    """How a policy is optimised on models: a learner on imagined data, back-propagation through time, or plans."""
    learner: str = "sac"
    """Inside dyna, from kept rollouts: sac, mpo; from the newest alone: ppo, trpo, actor-critic."""
    preset: str = "default"
    """Where settings come from that are not given: default (what works best here) or paper."""
    seeds: int = 1
    """How many seeds."""
    seed: int = 0
    """The first seed."""
    episodes: int = 20
    """Episodes after the first."""
    horizon: int | None = None
    """Time limit of an episode in steps; the task's own if not given."""
    env_timeout: float | None = None
    """Seconds in which the environment has to answer a step or a reset, or else its seed is stopped; no limit if not
    given."""
    out: Path | None = None
    """Folder of the run, which must not exist yet; runs/TASK-AGENT-TIME if not given."""
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
    cdpo: CDPO = CDPO()
    greedy: Greedy = Greedy()
    psrl: PSRL = PSRL()
    hucrl: HUCRL = HUCRL()
    mbpo: MBPO = MBPO()
    me_trpo: METRPO = METRPO()
    slbo: SLBO = SLBO()
    dpi: DPI = DPI()
    replay: OffPolicy = OffPolicy()
    newest: OnPolicy = OnPolicy()

    def with_preset(self) -> "Train":
        """The same words with the preset's settings, as defaults for those that are given."""
        settings = self._preset()
        used = parts_of(self._rule(), self.solver, self.learner)
        parts: dict[str, Any] = {name: getattr(settings, name) for name in used if name not in ("solver", "learner")}
        parts[settings.rule.part] = settings.rule
        return dataclasses.replace(self, **parts)

    def about(self) -> str:
        """What the help says above the values of this command."""
        first = (type(self).__doc__ or "").splitlines()[0]
        told = f"--preset {self.preset} for {self.task}, --agent {self.agent}, and what else was given"
        return f"{first}\n\nThe defaults are the values of this command: {told}."

    def settings(self, words: Sequence[str]) -> Settings:
        """Of this agent, as the words of the command name them."""
        kind = self._rule()
        used = parts_of(kind, self.solver, self.learner)
        chosen = [f"--{name} {getattr(self, name)}" for name in ("solver", "learner") if name in used]
        whom = " with ".join([f"--agent {self.agent}", *([" and ".join(chosen)] if chosen else [])])
        named = {re.split("[.=]", word)[0].replace("_", "-") for word in words}
        for field in dataclasses.fields(self):
            known = field.name in PARTS or isinstance(field.default, Rule)
            option = f"--{field.name.replace('_', '-')}"
            if known and field.name not in (*used, kind.part) and option in named:
                what = "it" if isinstance(field.default, str) else "its options"
                raise UserError(f"{option} says nothing to {whom}; leave {what} out")
        told = Settings(rule=getattr(self, kind.part), **{name: getattr(self, name) for name in used})
        for part, name in idle_options(told):
            if getattr(getattr(told, part), name) != getattr(getattr(self._preset(), part), name):
                option = f"--{part}.{name}".replace("_", "-")
                raise UserError(f"{option} says nothing to {whom}, as its other settings are; leave it out")
        return told

    def run(self, words: Sequence[str]) -> int | None:
        """Train into a new folder."""
        if not 1 <= self.episodes <= _MOST:
            raise UserError(f"--episodes must be between 1 and {_MOST}, not {self.episodes}")
        task, seeds, settings = self._task(), seed_numbers(self.seeds, self.seed), self.settings(words)
        settings.loop.check_learns(self.episodes)
        name = f"{task.name}-{self.agent}".replace("/", "-").lower()
        out = Path("runs") / time.strftime(f"{name}-%Y%m%d-%H%M%S") if self.out is None else self.out
        check_free(out)
        config = run_config(task, self.task, settings, self.preset, seeds, self.episodes, self.env_timeout)
        trainer = Trainer(task, settings, seeds)  # before the folder: settings that do not fit the task leave none
        folder = RunFolder.create(out, {"command": shlex.join(["cdpo", *words]), **config})
        with explained(_go_on(folder)):
            summary = _train(folder, trainer, self.episodes)
        return _tell(folder, summary)

    def _preset(self) -> Settings:
        return preset(self.preset, self._task(), self._rule().name, self.learner)

    def _task(self) -> Task:
        return find_task(self.task, horizon=self.horizon, env_timeout=self.env_timeout)

    def _rule(self) -> type[Rule]:
        if self.agent not in RULES:
            raise unknown("agent", self.agent, RULES)
        return RULES[self.agent]


def resume_training(
    folder: RunFolder, more: int, named: str | None, env_timeout: float | None, *, restart: bool
) -> int | None:
    """Go on with a training run, for `more` episodes than it was told; `named` is its task as the user names it."""
    config, where = folder.config, repr(str(folder.path))
    settings, seeds, episodes = settings_of(folder), seeds_of(folder), episodes_of(folder)
    if named is not None and named != config.get("task"):
        raise UserError(
            f"{where} was trained on {config.get('task')!r} and goes on with that; leave --task {named} out"
        )
    if more < 0 or episodes + more > _MOST:
        raise UserError(f"--episodes must be between 0 and {_MOST - episodes}, not {more}")
    done = is_done(folder)
    if "part_of" in config and (more or done):
        raise UserError(f"{where} belongs to {config['part_of']!r}, which says how long it is; for more: cdpo train")
    if done and not more and not restart:
        raise UserError(f"{where} has finished; to go on: {_go_on(folder)} --episodes MORE")
    task = task_of(folder, named, env_timeout)
    with explained(_go_on(folder)), folder.writing():
        if folder.config != config:
            raise UserError(f"{where} was told something else meanwhile; try again")
        trainer = Trainer(task, settings, seeds)
        if restart:
            say(f"set aside in {str(set_aside(folder))!r}")
        if more:
            # Kept before anything is run: interrupted again, the run knows how far it was to go.
            folder.write_config({**config, "episodes": episodes + more})
        summary = _train(folder, trainer, episodes + more)
    return _tell(folder, summary)


def _train(folder: RunFolder, trainer: Trainer, episodes: int) -> dict[str, Any]:
    """To the end of the run; its summary."""
    warn_if_short(trainer.settings, trainer.task, len(trainer.pupils), episodes)
    label = f"{trainer.task.name}, {trainer.settings.rule.name}"
    with Progress() as progress, journal(folder, trainer) as kept:
        bar = progress.task(label, episodes + 1)
        bar.advance(trainer.episode)
        summary = train(kept, episodes, lambda records: bar.advance(note=returns_note(records)))
        bar.done()
        write_figures(folder)
    return summary


def _tell(folder: RunFolder, summary: dict[str, Any]) -> int | None:
    """What came out; the exit code, if a seed was stopped."""
    print(_table(summary))
    print(printable(f"run folder: {folder.path}   page: cdpo report {shlex.quote(str(folder.path))}"))
    for seed, reason in summary["stopped"].items():
        say(f"cdpo: seed {seed} was stopped by {reason}")
    return STOPPED if summary["stopped"] else None


def _go_on(folder: RunFolder) -> str:
    """The command that goes on with a run; it names a task that has a module to import."""
    word = folder.config.get("task")
    task = ["--task", word] if isinstance(word, str) and ":" in word else []
    return shlex.join(["cdpo", "resume", str(folder.path), *task])


def _table(summary: dict[str, Any]) -> str:
    rows = [("seed", "env steps", "final evaluation", "best")]
    for seed, steps, returns in zip(summary["seeds"], summary["env_steps"], summary["eval_returns"], strict=True):
        final = final_return(np.array(returns))
        told = ("-", "-") if final is None else (f"{final:.1f}", f"{max(returns):.1f}")
        rows.append((str(seed), str(steps), *told))
    return aligned(rows)


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """Measure the policies of a training run in new episodes."""

    folder: tyro.conf.Positional[Path]
    """The run folder."""
    episodes: int = 10
    """Episodes for each seed, by the policy's mode."""
    plan: bool = False
    """Act by planning on the learned models instead, and say how long it took."""
    task: str | None = None
    """What to evaluate on, if it is not to be what the folder names: needed where that has a module to import."""
    json: bool = False
    """Print JSON."""

    def run(self, words: Sequence[str]) -> int | None:
        """Evaluate every seed; one that cannot be is told, and the others go on."""
        agent = load(self.folder, task=self.task, policy_only=not self.plan)
        results = [self._measured(agent[index]) for index in range(len(agent))]
        if not any(result["returns"] for result in results):
            raise UserError(results[0]["failed"])
        if self.json:
            print(json.dumps({"task": agent.task.name, "agent": agent.rule, "seeds": results}, allow_nan=False))
        failed = [result for result in results if "failed" in result]
        for result in results:
            if not self.json and "failed" not in result:
                print(printable(self._line(result)))
        for result in failed:
            say(f"cdpo: seed {result['seed']}: {result['failed']}")
        return STOPPED if failed else None

    def _line(self, result: dict[str, Any]) -> str:
        lowest, highest = min(result["returns"]), max(result["returns"])
        told = f"seed {result['seed']}: {result['mean']:.1f} (lowest {lowest:.1f}, highest {highest:.1f})"
        if self.plan:
            told += f", {result['latency_ms']:.1f} ms a step (99th percentile {result['latency_p99_ms']:.1f})"
        return told

    def _measured(self, seed: Seed) -> dict[str, Any]:
        """What is no finite number is null; `failed` says why a seed has no mean."""
        try:
            planner = seed.planner() if self.plan else None
            returns = seed.evaluate(self.episodes, planner=planner)
        except UserError as error:
            return {"seed": seed.seed, "mean": None, "returns": [], "failed": str(error)}
        with np.errstate(over="ignore"):  # the sum of numbers need not be one
            mean = _number(np.mean(returns))
        result: dict[str, Any] = {"seed": seed.seed, "mean": mean, "returns": [_number(value) for value in returns]}
        if mean is None:
            result["failed"] = "not every return is a finite number"
        if planner is None:
            return result
        taken = 1e3 * np.array(planner.seconds or [np.nan])
        return result | {"latency_ms": _number(np.mean(taken)), "latency_p99_ms": _number(np.percentile(taken, 99))}


def _number(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None


@dataclasses.dataclass(frozen=True)
class CheckEnv:
    """Say whether an environment will work, and whether its reward and termination match what is known of them."""

    task: tyro.conf.Positional[str]
    """A task's name or a Gymnasium id."""
    episodes: int = 3
    """Random episodes to try."""
    horizon: int | None = None
    """Time limit of an episode in steps; the environment's own if not given."""
    env_timeout: float | None = None
    """Seconds that a reset or a step may take; as long as it likes if not given."""

    def run(self, words: Sequence[str]) -> None:
        """Check and report."""
        if self.episodes < 1:
            raise UserError(f"--episodes must be at least 1, not {self.episodes}")
        task = find_task(self.task, horizon=self.horizon, env_timeout=self.env_timeout)
        report = check_task(task, self.episodes)
        for finding in report.findings:
            print(printable(finding))
        if not report.ok:
            raise UserError(f"{self.task} will not work: {'; '.join(report.problems)}")
        print(printable(f"{self.task} will work"))
