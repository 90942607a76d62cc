"""What an agent's arrays hold, by arithmetic from its settings: what fits nowhere is refused before any is made."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from cdpo.dynamics import replay
from cdpo.errors import UserError, shown
from cdpo.solvers.learner import LearnerSettings
from cdpo.solvers.mpo import MPOSettings
from cdpo.solvers.offpolicy import TwinSettings
from cdpo.solvers.values import CriticSettings
from cdpo.tasks import Task
from cdpo.training.settings import Settings

MOST_KEPT = 2**28  # numbers of networks, or of an episode, that a seed has from its beginning on: 1 GiB
MOST_AT_ONCE = 2**31  # of any group of arrays while it learns: 8 GiB
_MOST_TIMES = 1000  # that something stands side by side, or is written out in a program and makes it longer
_OPTIMISED = 3  # a network, and what Adam remembers of it twice
_VALUED = 8  # twin critics with Adam's memory, and their targets


def check_size(settings: Settings, task: Task) -> None:
    """Reject settings whose arrays, or whose programs, would be absurdly large on a task."""
    for option, count in _repeated(settings):
        if count > _MOST_TIMES:
            raise UserError(f"{option} must be at most {_MOST_TIMES}, not {count}")
    for most, groups in ((MOST_KEPT, _kept(settings, task)), (MOST_AT_ONCE, _made(settings, task))):
        for options, numbers in groups:
            if numbers > most:
                raise UserError(
                    f"{options} ask for {shown(numbers >> 28)} GiB for each seed, and at most {most >> 28} can be had; "
                    "make them smaller"
                )


def held(settings: Settings, task: Task) -> int:
    """Numbers that a seed has from its beginning on, those of its replay aside."""
    return sum(numbers for _, numbers in _kept(settings, task))


def at_once(settings: Settings, task: Task) -> int:
    """Numbers of the largest group of arrays while it learns."""
    return max((numbers for _, numbers in _made(settings, task)), default=0)


def _repeated(settings: Settings) -> Iterator[tuple[str, int]]:
    """Options that say how often something is written out in a program, or how many models and policies there are."""
    yield f"{settings.rule.part}.models", _models(settings)
    if "dyna" in settings.parts:
        yield "dyna.returns", settings.dyna.returns
        yield "dyna.earlier", settings.dyna.earlier
    if "ensemble" in settings.parts:
        yield "ensemble.heads", settings.ensemble.heads
        yield "ensemble.unrolled", settings.ensemble.unrolled
    yield f"{settings.rule.part}.turns", getattr(settings.rule, "turns", 1)


def _kept(settings: Settings, task: Task) -> Iterator[tuple[str, int]]:
    """By the options that decide on them, the numbers in networks and in the room for one episode."""
    seen, done, hidden = task.observations, task.actions, settings.hidden
    models, part = _models(settings), settings.rule.part
    yield f"episodes of {shown(task.horizon)} steps", 2 * task.horizon * row_width(task)
    if "ensemble" in settings.parts:
        told = settings.ensemble
        layers = () if told.kind == "linear" else told.hidden
        members = (1 + told.heads) * _OPTIMISED * _parameters((seen + done, *layers, seen))
        yield "ensemble.heads and ensemble.hidden", members
    policy = _parameters((seen, *hidden, done))
    critics = _VALUED * models * _parameters((seen + done, *hidden, 1))
    yield f"{_optimiser(settings)}.hidden and {part}.models", _OPTIMISED * policy + critics
    if "dyna" in settings.parts:
        yield f"dyna.earlier and {_optimiser(settings)}.hidden", settings.dyna.earlier * policy


def _made(settings: Settings, task: Task) -> Iterator[tuple[str, int]]:
    """The same of what is made while an agent learns, and forgotten."""
    row, rule, optimiser = row_width(task), settings.rule, _optimiser(settings)
    wide = row + sum(settings.hidden)
    if "ensemble" in settings.parts:
        told = settings.ensemble
        passed = told.batch * (row + sum(told.hidden)) * max(1, told.unrolled)
        yield "ensemble.heads, ensemble.hidden and ensemble.batch", (1 + told.heads) * passed
    if "dyna" in settings.parts:
        yield from _dyna(settings, row, wide)
    if "bptt" in settings.parts:
        bptt = settings.bptt
        rolled = bptt.steps * bptt.particles * _models(settings)
        yield f"bptt.horizon, bptt.particles, bptt.hidden and {rule.part}.models", rolled * wide
    if "mpc" in settings.parts:
        yield from _mpc(settings, row, wide)
    if hasattr(rule, "batch"):
        yield f"{rule.part}.batch and {optimiser}.hidden", rule.batch * _batches(settings) * _samples(settings) * wide
    if hasattr(rule, "steps"):
        yield f"{rule.part}.steps and {optimiser}.hidden", rule.steps * wide


def _dyna(settings: Settings, row: int, wide: int) -> Iterator[tuple[str, int]]:
    dyna, learner, models = settings.dyna, _optimiser(settings), f"{settings.rule.part}.models"
    rolled = dyna.particles * dyna.horizon * _models(settings)
    if learner not in ("sac", "mpo"):
        yield f"dyna.particles, dyna.horizon, {learner}.hidden and {models}", rolled * wide
        return
    past = rolled * min(dyna.kept, dyna.rounds) * (1 + dyna.earlier)
    yield f"dyna.particles, dyna.horizon, dyna.kept, dyna.earlier and {models}", past * row
    drawn = dyna.batch * _models(settings) * _batches(settings)
    yield f"dyna.batch, dyna.updates, {learner}.critic_steps and {models}", drawn * dyna.updates * row
    ahead = _samples(settings) if dyna.expansion == "none" else dyna.expanded
    yield f"dyna.batch, dyna.expanded, {learner}.hidden and {models}", drawn * ahead * wide


def _mpc(settings: Settings, row: int, wide: int) -> Iterator[tuple[str, int]]:
    mpc, models = settings.mpc, f"{settings.rule.part}.models"
    planned = mpc.steps * mpc.plans * mpc.horizon * _models(settings)
    yield f"mpc.kept, mpc.steps, mpc.plans, mpc.horizon and {models}", min(mpc.kept, mpc.rounds) * planned * row
    tried = mpc.candidates * mpc.horizon * _models(settings)
    yield f"mpc.candidates, mpc.horizon, mpc.hidden and {models}", tried * max((row, *mpc.hidden))
    rolled = mpc.particles * mpc.horizon * _models(settings)
    yield f"mpc.particles, mpc.horizon, mpc.hidden and {models}", rolled * wide
    yield "mpc.batch and mpc.hidden", mpc.batch * wide


def _models(settings: Settings) -> int:
    """That are planned on at once."""
    return getattr(settings.rule, "models", 1)


def _optimiser(settings: Settings) -> str:
    """The part of the settings of what optimises the policy."""
    kinds = (LearnerSettings, CriticSettings)
    return next(part for part in settings.parts if isinstance(getattr(settings, part), kinds))


def _batches(settings: Settings) -> int:
    """Of one update."""
    told = getattr(settings, _optimiser(settings))
    return told.critic_steps if isinstance(told, TwinSettings) else 1


def _samples(settings: Settings) -> int:
    """Actions at each state of a batch."""
    told = getattr(settings, _optimiser(settings))
    return told.samples if isinstance(told, MPOSettings) else 1


def row_width(task: Task) -> int:
    """Numbers of a transition, with that of its episode."""
    return replay.row_width(task.observations, task.actions)


def _parameters(layers: Sequence[int]) -> int:
    """Of a network."""
    return sum((before + 1) * after for before, after in pairwise(layers))
