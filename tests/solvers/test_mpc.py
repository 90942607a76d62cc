import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cdpo.dynamics.models import reference_model
from cdpo.errors import UserError
from cdpo.solvers.base import Objective, Trust
from cdpo.solvers.mpc import MPC, Learning, Lesson, MPCSettings
from cdpo.solvers.plans import Planning
from cdpo.solvers.policy import HostPolicy, Policy
from cdpo.solvers.search import Found
from cdpo.solvers.values import roll_out
from cdpo.training.settings import Settings

KEY = jax.random.key(0)
TINY = {"horizon": 3, "imitated": 2, "plans": 4, "rounds": 2, "updates": 4, "batch": 8, "particles": 2, "hidden": (8,)}
KINDS = {
    "POPLIN-P": {},
    "POPLIN-P, averaged": {"distils": "averaging", "reach": 0.5},
    "POPLIN-A, coloured, MPPI, replanned": {"moves": "actions", "colour": 2.0, "method": "mppi", "steps": 2},
    "without values": {"moves": "actions", "value": False},
}


def steered(observation, action, following):
    """Best at zero, and with no more effort than needed."""
    return -(following[..., 0] ** 2) - 0.1 * action[..., 0] ** 2


def solved(linear_task, linear_belief, starts_at, **settings):
    """The policy and the metrics of an update on an exact model, s' = s + a / 2."""
    task = linear_task(steered)
    belief = linear_belief(task, [[[0.0], [0.5]]])
    mpc = MPC(MPCSettings(**TINY | {"plans": 24, "rounds": 10, "updates": 20, "batch": 64, "hidden": (16,)} | settings))
    policy = Policy.create(task, belief.ensemble.inputs, (16,), jax.random.key(2))
    starts = starts_at([[0.0]], weights=(0.0, 0.0, 1.0), low=-1.0, high=1.0)

    @jax.jit
    def solve(key):
        objective, state = Objective(0.8, Trust.off(policy, 4)), mpc.begin(policy, 1, key)
        return mpc(policy, reference_model(belief, 1), objective, starts=starts, state=state, key=key)

    return mpc, *solve(KEY)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_on_an_exact_model_the_policy_finds_the_best_actions(linear_task, linear_belief, starts_at, kind):
    better = {"learning_rate": 0.01} | KINDS[kind]
    if kind == "without values":
        better |= {"horizon": 6}
    mpc, policy, _, metrics = solved(linear_task, linear_belief, starts_at, **better)
    act, state = HostPolicy(policy), np.array([[-0.8], [0.8]])
    for _ in range(10):
        state = state + 0.5 * act(state)
    assert np.all(np.abs(state) < 0.15)
    assert metrics["log_deviation"] == pytest.approx(np.log(mpc.settings.deviation), abs=0.2)
    assert metrics["gain"] >= 0


def finding(monkeypatch, better):
    """Searches find `better(plans)`, whatever it is worth."""

    def found(planning, states, plans, key):
        return Found(better(plans), jnp.zeros(len(plans)), jnp.zeros(len(plans)))

    monkeypatch.setattr(Planning, "better", found)


def test_averaging_moves_the_policy_by_the_mean_of_what_was_found(
    linear_task, linear_belief, some_policy, starts_at, monkeypatch
):
    task = linear_task(steered)
    models = reference_model(linear_belief(task, [[[0.0], [0.5]]]), 1)
    policy, starts = some_policy(task), starts_at([[1.0]])
    objective = Objective(0.9, Trust.off(policy, 4))
    finding(monkeypatch, lambda plans: plans + jnp.array([0.0, 0.1, 0.2, 0.5])[:, None])

    def planned(distils):
        mpc = MPC(MPCSettings(**TINY | {"distils": distils}))
        return mpc._planned(policy, models, objective, starts, mpc.begin(policy, 1, KEY), KEY)

    (same, cloned, _), (moved, averaged, _) = planned("cloning"), planned("averaging")
    jax.tree.map(np.testing.assert_array_equal, same.net, policy.net)
    jax.tree.map(lambda new, old: np.testing.assert_allclose(new - old, 0.2, rtol=1e-5), moved.net, policy.net)
    np.testing.assert_array_equal(cloned.states, averaged.states)
    # What is learned then is to stay there.
    np.testing.assert_allclose(averaged.mean, moved(averaged.states).mean, rtol=1e-5)
    assert np.any(np.asarray(cloned.mean != averaged.mean))


@pytest.mark.slow
def test_of_a_plan_shorter_than_what_is_imitated_every_step_is_a_lesson(
    linear_task, linear_belief, some_policy, starts_at
):
    task = linear_task(steered)
    models = reference_model(linear_belief(task, [[[0.0], [0.5]]]), 1)
    policy, starts = some_policy(task), starts_at([[1.0]])
    objective = Objective(0.9, Trust.off(policy, 4))

    def lesson(imitated):
        mpc = MPC(MPCSettings(**TINY | {"imitated": imitated}))
        return mpc._planned(policy, models, objective, starts, mpc.begin(policy, 1, KEY), KEY)[1]

    assert len(lesson(3).states) == 3 * TINY["plans"]
    jax.tree.map(np.testing.assert_array_equal, lesson(10), lesson(3))


def beyond_one(observation, action, following):
    return following[..., 0] > 1


def test_states_after_an_end_are_no_lesson_and_plans_begin_anew(linear_task, linear_belief, some_policy, starts_at):
    task = linear_task(steered, beyond_one)
    models = reference_model(linear_belief(task, [[[1.0], [0.0]]]), 1)  # s' = 2 s
    policy, starts = some_policy(task), starts_at([[0.3]])  # 0.6, and 1.2 is an end
    mpc = MPC(MPCSettings(**TINY | {"imitated": 3, "steps": 3, "moves": "actions"}))
    objective = Objective(0.9, Trust.off(policy, 4))
    _, lesson, told = mpc._planned(policy, models, objective, starts, mpc.begin(policy, 1, KEY), KEY)
    states, weight = (np.asarray(each).reshape(3, 3, 4) for each in (lesson.states, lesson.weight))
    np.testing.assert_allclose(states[:, 0], [[0.3] * 4, [0.6] * 4, [0.3] * 4], rtol=1e-5)
    np.testing.assert_array_equal(
        weight, np.broadcast_to([[[1], [1], [0]], [[1], [0], [0]], [[1], [1], [0]]], (3, 3, 4))
    )
    assert told["imagined_ends"] == 1


def test_a_plan_goes_on_from_what_is_left_of_the_last_and_anew_after_an_end(
    linear_task, linear_belief, some_policy, starts_at, monkeypatch
):
    task = linear_task(steered, beyond_one)
    models = reference_model(linear_belief(task, [[[1.0], [0.0]]]), 1)  # s' = 2 s
    policy, starts = some_policy(task), starts_at([[0.3]])  # 0.6, and 1.2 is an end
    mpc = MPC(MPCSettings(**TINY | {"imitated": 3, "steps": 3, "moves": "actions"}))
    finding(monkeypatch, lambda plans: plans + 0.1)
    objective = Objective(0.9, Trust.off(policy, 4))
    _, lesson, _ = mpc._planned(policy, models, objective, starts, mpc.begin(policy, 1, KEY), KEY)
    moves = np.asarray(lesson.mean - policy(lesson.states).mean).reshape(3, 3, 4)
    np.testing.assert_allclose(moves[:, :, 0], [[0.1, 0.1, 0.1], [0.2, 0.2, 0.1], [0.1, 0.1, 0.1]], rtol=1e-4)


@pytest.mark.slow
def test_what_was_planned_is_learned_for_as_many_rounds_as_are_kept(linear_task, linear_belief, starts_at):
    def weights(**settings):
        _, policy, _, _ = solved(linear_task, linear_belief, starts_at, plans=4, updates=2, batch=8, **settings)
        return np.asarray(policy.net.weights[0])

    np.testing.assert_array_equal(weights(rounds=1, kept=1), weights(rounds=1, kept=2))
    assert np.any(weights(rounds=2, kept=1) != weights(rounds=2, kept=2))
    np.testing.assert_array_equal(weights(rounds=2, kept=2), weights(rounds=2, kept=8))


@pytest.mark.slow
def test_the_policys_gradient_has_the_multipliers_share_of_the_divergence_when_the_trust_region_is_on(
    linear_task, linear_belief, some_policy, starts_at, around
):
    task = linear_task(steered)
    models = reference_model(linear_belief(task, [[[0.0], [0.5]]]), 1)
    policy, mpc = some_policy(task), MPC(MPCSettings(**TINY))
    q = jax.tree.map(lambda leaf: leaf + 0.1, policy)
    states = jnp.linspace(-1, 1, 4)[:, None]
    lessons = Lesson(states[None], jnp.ones((1, 4, 1)), jnp.ones((1, 4)))
    state = mpc.begin(policy, 1, KEY)._replace(log_multiplier=jnp.asarray(1.0))
    learning = Learning(policy, mpc._descent.init(eqx.filter(policy.net, eqx.is_array)), state, jnp.zeros((1, 2, 1)))

    def gradient(trust):
        update = jax.jit(
            lambda key: mpc._update(lessons, 1, models, Objective(0.9, trust), starts_at([[0.0]]), learning, key)
        )
        moment = update(KEY)[0].optimiser[0].mu
        return jax.tree.map(lambda leaf: np.asarray(leaf) / 0.1, moment)  # Adam's first moment after a step

    trust = around(q, 0.1)
    divergence = jax.grad(lambda net: trust.spent(eqx.tree_at(lambda p: p.net, policy, net), trust.watched))(policy.net)
    jax.tree.map(
        lambda on, off, kl: np.testing.assert_allclose((1 + np.e) * on - off, np.e * kl, rtol=1e-2, atol=1e-3),
        gradient(trust),
        gradient(around(q, 0.1, active=False)),
        divergence,
    )


def test_values_stay_within_what_rewards_can_add_up_to(linear_task, linear_belief, some_policy, starts_at):
    task = linear_task(steered)
    models = reference_model(linear_belief(task, [[[0.0], [0.5]]]), 1)
    policy, mpc = some_policy(task), MPC(MPCSettings(**TINY))
    objective = Objective(0.9, Trust.off(policy, 4))
    state = mpc.begin(policy, 1, KEY)
    targets = eqx.tree_at(lambda net: net.biases[-1], state.critics.targets, jnp.full((1, 1), -1e6))
    absurd = state._replace(critics=state.critics._replace(targets=targets))
    np.testing.assert_array_equal(mpc.beyond(absurd, policy, jnp.ones((1, 3, 1))), 0)  # nothing was seen to be paid
    begin, starts = jnp.linspace(-1, 1, 8).reshape(1, 8, 1), starts_at([[0.0]])
    after, _, _ = jax.jit(lambda state: mpc._fitted(state, policy, models, objective, starts, begin, KEY))(absurd)
    path = roll_out(policy, policy, models, begin, jax.random.split(KEY, 3)[0], 3)
    np.testing.assert_allclose(after.bounds, [10 * jnp.min(path.reward), 0.0], rtol=1e-4)
    np.testing.assert_array_equal(mpc.beyond(after, policy, jnp.ones((1, 3, 1))), after.bounds[0])
    returns = absurd.having_seen(path, 0.9).returns(path, policy, 0.9, 0.8)
    assert np.all(np.asarray(returns) >= after.bounds[0] - 1e-3)


@pytest.mark.parametrize(("rolled", "anew"), [(3, 1.0), (12, 0.25), (1_000_000, 0.0)])
def test_rollouts_of_critics_go_on_where_the_last_ones_came_and_some_begin_anew(
    linear_task, linear_belief, some_policy, starts_at, rolled, anew
):
    task = linear_task(steered)
    models = reference_model(linear_belief(task, [[[1.0], [0.0]]]), 1)  # s' = 2 s
    policy, mpc = some_policy(task), MPC(MPCSettings(**TINY, rolled=rolled))
    objective, begin = Objective(0.9, Trust.off(policy, 4)), jnp.ones((1, 400, 1))
    _, walked, _ = mpc._fitted(mpc.begin(policy, 1, KEY), policy, models, objective, starts_at([[-7.0]]), begin, KEY)
    assert set(np.unique(walked)) <= {-7.0, 8.0}
    assert np.mean(np.asarray(walked) == -7.0) == pytest.approx(anew, abs=0.05)


def test_rollouts_of_critics_that_ended_begin_anew(linear_task, linear_belief, some_policy, starts_at):
    task = linear_task(steered, lambda observation, action, following: following[..., 0] > 1)
    models = reference_model(linear_belief(task, [[[1.0], [0.0]]]), 1)
    policy, mpc = some_policy(task), MPC(MPCSettings(**TINY, rolled=1_000_000))
    objective, begin = Objective(0.9, Trust.off(policy, 4)), jnp.array([[[1.0], [-1.0]]])
    _, walked, _ = mpc._fitted(mpc.begin(policy, 1, KEY), policy, models, objective, starts_at([[-7.0]]), begin, KEY)
    np.testing.assert_array_equal(walked, [[[-7.0], [-8.0]]])


# --- settings


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"horizon": 0}, "mpc.horizon must be at least 1"),
        ({"horizon": 2.5}, "must be of type int"),
        ({"imitated": 0}, "mpc.imitated must be at least 1"),
        ({"plans": 0}, "mpc.plans must be at least 1"),
        ({"candidates": 0}, "mpc.candidates must be at least 1"),
        ({"elites": 0}, "mpc.elites must be at least 1"),
        ({"elites": 17}, "mpc.elites must be at most the 16 candidates, not 17"),
        ({"particles": 0}, "mpc.particles must be at least 1"),
        ({"rolled": 0}, "mpc.rolled must be at least 1"),
        ({"updates": 0}, "mpc.updates must be at least 1"),
        ({"critic_steps": 0}, "mpc.critic_steps must be at least 1"),
        ({"reach": 0.0}, "mpc.reach must be above 0"),
        ({"deviation": 0.0}, "mpc.deviation must be above 0"),
        ({"trace": 1.5}, "mpc.trace must be between 0 and 1"),
        ({"moves": "action"}, "did you mean 'actions'"),
        ({"moves": "actions", "distils": "averaging"}, "mpc.distils averaging is of parameters"),
        ({"colour": 1.0}, "mpc.colour is of actions"),
        ({"initial": 0.0, "visited": 0.0, "broad": 0.0}, "mpc.broad must not all be zero"),
    ],
)
def test_settings_outside_their_range_are_told_in_one_line(wrong, word):
    with pytest.raises(UserError) as told:
        Settings(solver="mpc").changed(mpc=wrong)
    assert word in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize("change", [{}, {"moves": "actions", "colour": 2.0}, {"hidden": (8, 9), "value": False}])
def test_settings_survive_json(change):
    told = Settings(solver="mpc").changed(mpc=change)
    assert Settings.from_json(json.loads(json.dumps(told.to_json()))) == told
