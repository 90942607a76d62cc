"""What every agent with a model shares: one iteration between two stretches of real steps, for one seed.

    fit the ensemble, calibrate it            (dynamics)
    improve the policy                        (the rule: on which models, by which updates)
    write down what the iteration did         (the ledger)

`learn` is pure. Seeds are mapped over it from outside.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from cdpo.agents.base import Agent, Rule, program
from cdpo.dynamics.calibration import Calibration, calibrate, coverage_metrics, residuals
from cdpo.dynamics.ensemble import Ensemble, EnsembleSettings, chosen, fit, split_rows_of
from cdpo.dynamics.linear import fit_linear
from cdpo.dynamics.models import Belief, ModelSet, reference_model, sampled_models
from cdpo.dynamics.replay import Replay
from cdpo.errors import UserError
from cdpo.solvers.base import Metrics, Objective, Size, Solver, Starts, Trust
from cdpo.solvers.policy import Policy
from cdpo.solvers.rollouts import Outlook, foresight, look_ahead, model_values
from cdpo.tasks import Task

JUDGED = 512  # states at which models and policies are compared
_VISITED = 8192  # states that stand for the visitation of a policy; with few, the trust region is learned by heart
_PARTICLES = 128  # rollouts behind them


class ModelMind(NamedTuple):
    """All that one seed has learned."""

    belief: Belief
    fit_state: Any
    policy: Policy
    solver_state: Any
    memory: Any  # the rule's own


class Plan(NamedTuple):
    """What a rule decided."""

    policy: Policy  # pi_t, which acts
    reference: Policy  # q_t; pi_t itself where there is only one update
    model: ModelSet  # the reference, under which both are judged
    memory: Any = ()
    trust: Trust | None = None
    outlook: Outlook | None = None  # of q_t under the reference, where the rule has looked already
    models: ModelSet | None = None  # on which pi_t was made from q_t


@dataclass(frozen=True)
class Exploration(Rule):
    """An exploration rule: which models a policy is optimised on, and by which updates."""

    uses: ClassVar[tuple[str, ...]] = ("solver", "loop", "ensemble")
    plans_on: ClassVar[Literal["reference", "sample", "optimistic"]] = "reference"
    """The model whose movement says how unsettled the rule's plans are."""

    models: int = 5
    """Models that are planned on at once; where a rule plans on one, all are that one."""

    def check(self, kit: "Kit") -> None:
        """Reject what the rule cannot work with."""

    def check_heads(self, kit: "Kit") -> None:
        """Reject fewer heads than models, for rules that plan on different ones."""
        if self.models > kit.ensemble.heads:
            raise UserError(
                f"{self.part}.models must not be above ensemble.heads, {kit.ensemble.heads}, not {self.models}"
            )

    def solver(self, solver: Solver) -> Solver:
        """What the rule solves by, made of the solver that it was given."""
        return solver

    def extra(self, task: Task) -> int:
        """Parts of a policy's action beyond those of the environment."""
        return 0

    def begin(self, belief: Belief) -> Any:
        """Memory before the first iteration."""
        return ()

    def optimistic(self, belief: Belief) -> ModelSet | None:
        """The optimistic model, for rules that plan on one."""
        return None

    @abstractmethod
    def improve(self, policy: Policy, bench: "Bench") -> Plan:
        """The algorithm-specific lines: on which models the policy is optimised, and by which updates."""


class Bench:
    """What a rule works with in one iteration: the belief, the solver and sources of randomness."""

    def __init__(
        self, kit: "Kit", mind: ModelMind, starts: Starts, iteration: Array, key: Array, split_key: Array
    ) -> None:
        """At iteration t = 1, 2, ..., of one seed."""
        self.belief = mind.belief
        self.memory = mind.memory
        self.fit_state = mind.fit_state
        self.iteration = iteration
        self.key = key
        self.metrics: Metrics = {}
        self._kit = kit
        self._starts = starts
        self._state = mind.solver_state
        self._split_key = split_key
        self._solved = self._fitted = 0

    @property
    def state(self) -> Any:
        """The solver's, after all updates so far."""
        return self._state

    @property
    def lived(self) -> Array:
        """Real steps so far."""
        return self._starts.visited.size

    @property
    def horizon(self) -> int:
        """Steps of the solver's rollouts."""
        return int(self._kit.solver.settings.horizon)

    def fold(self, number: int) -> Array:
        """An independent key."""
        return jax.random.fold_in(self.key, number)

    def solve(self, policy: Policy, models: ModelSet, trust: Trust | None = None, *, as_: str) -> Policy:
        """argmax over pi of the mean value under the models, within the trust region; metrics are named `as_`.

        Where none is given, one that is off has as many states as CDPO's that is on, so that both run the same program.
        A rule that shares no program with CDPO spares itself these states by `Trust.off(policy)`.
        """
        self._solved += 1
        trust = Trust.off(policy, _VISITED) if trust is None else trust
        policy, self._state, metrics = self._kit.solve(
            policy, models, trust, self._starts, self._state, self.fold(100 + self._solved)
        )
        self.metrics |= {f"{as_}_{name}": value for name, value in metrics.items()}
        return policy

    def fit(self, policy: Policy) -> Policy:
        """Go on fitting the models to the data of the iteration; the policy as it was."""
        self._fitted += 1
        mind = ModelMind(self.belief, self.fit_state, policy, self._state, self.memory)
        mind, metrics = self._kit.fit(mind, self._starts.visited, self._split_key, self.fold(1000 + self._fitted))
        self.belief, self.fit_state, self._state = mind.belief, mind.fit_state, mind.solver_state
        self.metrics |= metrics
        return mind.policy

    def look(self, policy: Policy, model: ModelSet) -> Outlook:
        """The policy's value under the first of the models, and three sets of states that it visits there.

        The key is common: two policies are compared on the same noise.
        """
        return self._kit.look(policy, model.only(0), self._starts, self.fold(0))

    def gain(self, policy: Policy, last: Policy, models: ModelSet) -> Array:
        """What a policy is worth beyond the last one, on average over the models and on the same noise."""
        return self._kit.gain(policy, last, models, self._starts, self.fold(0))


class Kit(eqx.Module):
    """What rules work with: a task, models and a solver. No rule is part of it, so that all share its programs."""

    task: Task = eqx.field(static=True)
    ensemble: EnsembleSettings
    solver: Solver
    discount: float = eqx.field(static=True)

    def broad(self, belief: Belief) -> tuple[Array, Array]:
        """The box of broadly drawn starts: the task's, or the range of what was seen."""
        if self.task.broad is not None:
            return jnp.asarray(self.task.broad[0]), jnp.asarray(self.task.broad[1])
        low, high = belief.range
        third = (high - low) / 3  # the belief's range is three times what was seen
        return low + third, high - third

    @program
    def fit(self, mind: ModelMind, replay: Replay, split_key: Array, key: Array) -> tuple[ModelMind, Metrics]:
        """Fit and calibrate the models, and tell the networks of the policy and the solver how the data lie."""
        task = self.task
        split = split_rows_of(replay, self.ensemble, split_key)
        ensemble, fit_state = mind.belief.ensemble, mind.fit_state
        if self.ensemble.kind == "linear":
            ensemble, calibration, metrics = fit_linear(ensemble, replay, split, task=task, key=key)
        else:
            ensemble, fit_state, metrics = fit(
                ensemble, fit_state, replay, split, task=task, settings=self.ensemble, key=key
            )
            held = residuals(ensemble, task, replay.transitions(split.judged(JUDGED)))
            calibration = calibrate(held, split.judges)
        tested = residuals(ensemble, task, replay.transitions(split.spread(2, JUDGED)))
        measured = coverage_metrics(tested, calibration, "test")
        metrics |= jax.tree.map(lambda value: jnp.where(split.counts[2] > 0, value, jnp.nan), measured)
        metrics |= {"scale": jnp.mean(calibration.scale), "spread": jnp.mean(calibration.scale * tested.spread)}
        everything = replay.transitions()
        seen = jnp.where(replay.valid[:, None], everything.next, everything.next[:1])
        low, high = jnp.min(seen, axis=0), jnp.max(seen, axis=0)
        paid = jnp.where(replay.valid, everything.reward, everything.reward[0])
        if task.broad is not None:
            low, high = jnp.minimum(low, task.broad[0]), jnp.maximum(high, task.broad[1])
        # States may leave the range of the data by as much as it is wide; beyond that a model only diverges.
        range_ = jnp.stack([2 * low - high, 2 * high - low])
        rewards = jnp.stack([jnp.min(paid), jnp.max(paid)])
        ends = jnp.any(replay.valid & (everything.terminated > 0))
        belief = Belief(ensemble, calibration, range_, rewards, ends, task)
        old = chosen(mind.belief.ensemble.fits == 0, ensemble.inputs, mind.policy.inputs)
        last = eqx.tree_at(lambda p: p.inputs, mind.policy, old)
        policy = last.renormalised(ensemble.inputs)
        reward = jnp.sqrt(jnp.sum(jnp.where(replay.valid, paid**2, 0.0)) / jnp.maximum(replay.size, 1))
        # What follows a state is of the size that rewards add up to if they all point the same way.
        size = Size(reward, reward / (1 - self.discount))
        solver_state = self.solver.renormalised(mind.solver_state, last, policy, size)
        return ModelMind(belief, fit_state, policy, solver_state, mind.memory), metrics

    @program
    def solve(
        self, policy: Policy, models: ModelSet, trust: Trust, starts: Starts, state: Any, key: Array
    ) -> tuple[Policy, Any, Metrics]:
        """One update, whichever it is: models and trust region are values."""
        return self.solver(policy, models, Objective(self.discount, trust), starts=starts, state=state, key=key)

    @program
    def look(self, policy: Policy, model: ModelSet, starts: Starts, key: Array) -> Outlook:
        """The policy's value and visitation under the one model of a set."""
        return look_ahead(
            policy,
            model,
            starts,
            key,
            discount=self.discount,
            horizon=foresight(self.task, self.discount),
            particles=3 * _PARTICLES,
            sets=3,
            states=_VISITED,
        )

    @program
    def gain(self, policy: Policy, last: Policy, models: ModelSet, starts: Starts, key: Array) -> Array:
        """The difference of two policies' values, mean over the models."""
        after, before = (model_values(each, models, starts, key, self.discount) for each in (policy, last))
        return jnp.mean(after - before)

    @program
    def compare(
        self, before: ModelMind, after: ModelMind, optimistic: Sequence[ModelSet | None], replay: Replay, key: Array
    ) -> Metrics:
        """How far the planning models moved since the last iteration, on visited states: z-scores, root mean square.

        `optimistic` holds the optimistic models then and now, of rules that have one.
        """
        some = replay.draw(key, (1, JUDGED))
        action = jnp.pad(some.action, ((0, 0), (0, 0), (0, after.policy.actions - some.action.shape[-1])))
        old, new = jax.random.split(jax.random.fold_in(key, 1))

        def moved(first: ModelSet, second: ModelSet, then: Array, now: Array) -> Array:
            far = second.step(some.observation, now, key).next - first.step(some.observation, then, key).next
            scale = after.belief.ensemble.targets.deviation[: self.task.observations]
            return jnp.sqrt(jnp.mean((far / scale) ** 2))

        first, second = (reference_model(mind.belief, models=1) for mind in (before, after))
        metrics = {"unsettled_reference": moved(first, second, action, action)}
        first, second = (sampled_models(mind.belief, 1, "subset", each) for mind, each in ((before, old), (after, new)))
        metrics["unsettled_sample"] = moved(first, second, action, action)
        last, latest = optimistic
        if last is not None and latest is not None:
            chosen = (jnp.tanh(mind.policy(some.observation).mean) for mind in (before, after))
            then, now = (jnp.concatenate([some.action, each[..., self.task.actions :]], axis=-1) for each in chosen)
            metrics["unsettled_optimistic"] = moved(last, latest, then, now)
        return metrics

    @program
    def judge(self, belief: Belief, replay: Replay, count: Array) -> Metrics:
        """The model against the last `count` rows: error and coverage."""
        rows = replay.size - count + (jnp.arange(JUDGED) * count) // JUDGED
        new = residuals(belief.ensemble, self.task, replay.transitions(rows))
        error = {"model_error": jnp.sqrt(jnp.mean(new.error**2))}
        return error | coverage_metrics(new, belief.calibration, "new")


class ModelBased(Agent):
    """A rule and what it works with."""

    rule: Exploration
    kit: Kit

    @partial(jax.jit, static_argnums=1)
    def begin(self, hidden: tuple[int, ...], key: Array) -> ModelMind:
        """Before any data."""
        kit, task = self.kit, self.kit.task
        self.rule.check(kit)
        ensemble = Ensemble.create(task, kit.ensemble, jax.random.fold_in(key, 0))
        calibration = Calibration.none(ensemble.targets.mean.shape[0])
        anywhere = jnp.array([-jnp.inf, jnp.inf])
        range_ = jnp.broadcast_to(anywhere[:, None], (2, task.observations))
        belief = Belief(ensemble, calibration, range_, anywhere, jnp.asarray(False), task)
        policy = Policy.create(task, ensemble.inputs, hidden, jax.random.fold_in(key, 1), self.rule.extra(task))
        fit_state = kit.ensemble.optimiser.init(eqx.filter(ensemble.net, eqx.is_array))
        solver_state = kit.solver.begin(policy, self.rule.models, jax.random.fold_in(key, 2))
        return ModelMind(belief, fit_state, policy, solver_state, self.rule.begin(belief))

    def learn(
        self, mind: ModelMind, replay: Replay, starts: Starts, iteration: Array, key: Array
    ) -> tuple[ModelMind, Metrics]:
        """Algorithm 1 of the paper, between two episodes of one seed. `key` is the seed's, the same at every call."""
        now = jax.random.fold_in(jax.random.fold_in(key, 1), iteration)
        split_key = jax.random.fold_in(key, 0)  # a row's side does not depend on the iteration
        before = mind
        mind, metrics = self.kit.fit(mind, replay, split_key, jax.random.fold_in(now, 0))
        starts = eqx.tree_at(lambda s: (s.visited, s.low, s.high), starts, (replay, *self.kit.broad(mind.belief)))
        bench = Bench(self.kit, mind, starts, iteration, jax.random.fold_in(now, 1), split_key)
        plan = self.rule.improve(mind.policy, bench)
        after = ModelMind(bench.belief, bench.fit_state, plan.policy, bench.state, plan.memory)
        ledger = self._ledger(mind.policy, plan, bench)
        optimistic = [self.rule.optimistic(each.belief) for each in (before, after)]
        settled = self.kit.compare(before, after, optimistic, replay, jax.random.fold_in(now, 2))
        return after, metrics | bench.metrics | ledger | settled

    def judge(self, mind: ModelMind, replay: Replay, count: Array) -> Metrics:
        """The model against an episode on which it was not trained."""
        return self.kit.judge(mind.belief, replay, count)

    def parts(self, mind: ModelMind) -> dict[str, Any]:
        """From the data on."""
        belief = mind.belief
        learned = {"solver's state": mind.solver_state, "policy": mind.policy}
        return {"model": belief.ensemble, "calibration": belief.calibration, **learned}

    def _ledger(self, last: Policy, plan: Plan, bench: Bench) -> Metrics:
        """Delta(t) = V_{q_t} - V_{pi_{t-1}} under the reference, what was spent of the trust region, and for what."""
        seen = bench.look(plan.reference, plan.model) if plan.outlook is None else plan.outlook
        value_last = seen.value if plan.reference is last else bench.look(last, plan.model).value
        entry = {"value_last": value_last, "value_q": seen.value, "improvement": seen.value - value_last}
        if plan.trust is not None:
            spent = plan.trust.spent(plan.policy, seen.states[2])
            entry |= {
                "kl_bound": plan.trust.bound,
                "kl_spent": spent,
                "tv_bound": jnp.sqrt(plan.trust.bound / 2),
                "tv_spent": jnp.sqrt(jnp.maximum(spent, 0.0) / 2),
            }
        if plan.models is not None:
            entry["improvement_pi"] = bench.gain(plan.policy, plan.reference, plan.models)
        return entry
