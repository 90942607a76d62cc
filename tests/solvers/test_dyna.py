import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cdpo.dynamics.models import member_models, optimistic_model, reference_model, sampled_models
from cdpo.errors import UserError
from cdpo.solvers.base import Objective, Trust, step_back
from cdpo.solvers.dyna import Dyna, DynaSettings, DynaState

KEY = jax.random.key(0)
TINY = DynaSettings(rounds=3, kept=2, updates=2, particles=4, horizon=3, returns=2, batch=8, real=0.0)
back = eqx.filter_jit(step_back)


def one(observation, action, following):
    return jnp.ones(observation.shape[:-1])


def state(observation, action, following):
    return following[..., 0]


def changed(settings, **changes):
    return DynaSettings(**{**vars(settings), **changes})


def away(policy, by):
    return eqx.tree_at(lambda p: p.net, policy, jax.tree.map(lambda leaf: leaf + by, policy.net))


def around(policy, bound, active=True, count=32):
    states = jnp.linspace(-1, 1, count)[:, None]
    return Trust.around(policy, states, states[::2], jnp.asarray(bound), active=active)


# --- the trust region


@pytest.mark.parametrize(("by", "far"), [(0.1, False), (0.3, True)])
def test_what_is_spent_is_the_mean_divergence_over_the_states_as_it_is_counted(linear_task, some_policy, by, far):
    q = some_policy(linear_task(one))
    pi = away(q, by)
    states = jnp.linspace(-1, 1, 9)[:, None]
    (mean, log), (centre, width) = (tuple(np.asarray(part, np.float64) for part in p(states)) for p in (pi, q))
    by_hand = width - log + (np.exp(2 * log) + (mean - centre) ** 2) / (2 * np.exp(2 * width)) - 0.5
    assert (by_hand.max() > 1.6) == far
    by_hand = np.where(by_hand < 1.6, by_hand, 2 * np.sqrt(1.6 * by_hand) - 1.6)
    assert around(q, 0.1).spent(pi, states) == pytest.approx(by_hand.mean(), rel=1e-4)
    assert around(q, 0.1).spent(q, states) == 0


@pytest.mark.parametrize("count", [1, 32, 1024])
def test_a_gradient_step_watches_some_states_with_what_the_centre_does_there_and_few_states_all_once(
    linear_task, some_policy, count
):
    q = some_policy(linear_task(one))
    trust = around(q, 0.1, count=count)
    watched, chosen = trust.some_watched(KEY)
    np.testing.assert_allclose(chosen.mean, q(watched).mean, rtol=1e-5)
    assert set(watched[:, 0].tolist()) <= set(trust.watched[:, 0].tolist())
    if count <= 32:
        np.testing.assert_array_equal(watched, trust.watched)
    else:
        assert len(watched) < count
        assert (watched != trust.some_watched(jax.random.key(1))[0]).any()


@pytest.mark.parametrize(("bound", "active"), [(1e3, True), (1e-6, False)])
def test_a_policy_inside_the_trust_region_or_without_one_is_given_back_as_it_is(
    linear_task, some_policy, bound, active
):
    q = some_policy(linear_task(one))
    pi = away(q, 0.2)
    kept, share = back(pi, around(q, bound, active))
    jax.tree.map(np.testing.assert_array_equal, kept.net, pi.net)
    assert share == 1


@pytest.mark.parametrize("bound", [1e-4, 1e-2, 0.1])
def test_a_policy_outside_the_trust_region_is_moved_inside_towards_its_centre(linear_task, some_policy, bound):
    q = some_policy(linear_task(one))
    pi = away(q, 0.5)
    trust = around(q, bound)
    trust = eqx.tree_at(
        lambda t: t.watched, trust, jnp.full_like(trust.watched, jnp.nan)
    )  # it learned to be near there
    assert trust.spent(pi, trust.checked) > bound
    kept, share = back(pi, trust)
    assert trust.spent(kept, trust.checked) <= bound
    assert 0 <= share < 1
    for near, moved, far in zip(*(jax.tree.leaves(p.net) for p in (q, kept, pi)), strict=True):
        np.testing.assert_allclose(moved, near + share * (far - near), rtol=1e-5, atol=1e-6)
    less = jax.tree.map(lambda near, far: near + (share + 1 / 16) * (far - near), q.net, pi.net)
    assert trust.spent(eqx.tree_at(lambda p: p.net, q, less), trust.checked) > 0.9 * bound  # and no further than needed


# --- what the learner is given


class Spy:
    """Learns nothing, and remembers the least and the largest of what it is shown of each model, by name."""

    batches = 2

    def __init__(self, **looks):
        self.looks = looks

    def fresh(self, policy, state):
        return {name: known.at[0, 0].add(-1.0) if name == "begun" else known for name, known in state.items()}

    def begin(self, policy, models, key):
        return {name: jnp.stack([jnp.full(models, jnp.inf), jnp.full(models, -jnp.inf)]) for name in self.looks}

    def update(self, policy, state, batches, objective, key):
        def widened(known, look):
            seen = jnp.moveaxis(look(batches), 1, 0).reshape(known.shape[1], -1)
            return jnp.stack([jnp.minimum(known[0], seen.min(axis=1)), jnp.maximum(known[1], seen.max(axis=1))])

        return policy, {name: widened(known, self.looks[name]) for name, known in state.items()}, {}


def spied(settings, policy, models, starts, **looks):
    """Of each name the least and the largest for each model, [2, M]."""
    dyna = Dyna(settings, Spy(**looks))
    objective = Objective(0.9, Trust.off(policy, 4))

    @jax.jit
    def run(key):
        state = dyna.begin(policy, models.count, key)
        return dyna(policy, models, objective, starts=starts, state=state, key=key)[1].learner

    return {name: np.asarray(seen) for name, seen in run(KEY).items()}


def test_a_learner_sees_of_each_model_its_own_rollouts_and_nothing_that_was_not_imagined(
    linear_task, linear_belief, some_policy, starts_at
):
    task = linear_task(one)
    belief = linear_belief(task, [[[0.0], [0.0]], [[1.0], [0.0]], [[3.0], [0.0]]])  # s, 2 s and 4 s
    models = sampled_models(belief, 2, "subset", KEY)
    seen = spied(
        changed(TINY, returns=1), some_policy(task), models, starts_at([[1.0]]),
        ratio=lambda b: b.next / b.observation, reward=lambda b: b.reward,
    )  # fmt: skip
    expected = np.where(np.asarray(models.heads)[:, 0] == 1, 2.0, 4.0)
    np.testing.assert_allclose(seen["ratio"], np.tile(expected, (2, 1)), rtol=1e-5)
    np.testing.assert_array_equal(seen["reward"], 1)  # an empty place would show a zero


def test_nothing_past_the_reach_of_the_models_is_learned_from_and_every_reach_is_the_same_program(
    linear_task, linear_belief, some_policy, starts_at
):
    task = linear_task(state)
    belief = linear_belief(task, [[[1.0], [0.0]]] * 3)  # s' = 2 s: 1, 2, 4, 8
    policy, traced = some_policy(task), []

    @jax.jit
    def seen(reach):
        traced.append(reach)
        models = member_models(belief, jnp.array([1, 2]), reach)
        dyna = Dyna(changed(TINY, updates=20), Spy(state=lambda b: b.observation, reward=lambda b: b.reward))
        objective = Objective(1.0, Trust.off(policy, 4))
        state = dyna.begin(policy, 2, KEY)
        _, after, metrics = dyna(policy, models, objective, starts=starts_at([[1.0]]), state=state, key=KEY)
        return after.learner, metrics

    for reach, states, rewards, mean in ((1, [1, 1], [2, 2], 2), (2, [1, 2], [4, 6], 5), (3, [1, 4], [6, 12], 26 / 3)):
        told, metrics = seen(jnp.asarray(reach))
        np.testing.assert_allclose(told["state"], np.tile(np.array([states]).T, 2))
        np.testing.assert_allclose(told["reward"], np.tile(np.array([rewards]).T, 2))  # sums of up to two steps
        assert metrics["imagined_return"] == pytest.approx(mean)
    assert len(traced) == 1


@pytest.mark.slow
def test_as_many_rollouts_of_each_earlier_policy_are_learned_from_and_an_update_leaves_the_one_it_began_with(
    linear_task, linear_belief, some_policy, starts_at
):
    def acted(observation, action, following):
        return action[..., 0]

    task = linear_task(acted)
    models = reference_model(linear_belief(task, np.zeros((2, 2, 1))), 2)

    def always(mean):  # in any state, with next to no noise
        policy = some_policy(task)
        net = jax.tree.map(jnp.zeros_like, policy.net)
        told = jnp.zeros_like(net.biases[-1]).at[0].set(jnp.arctanh(mean)).at[1:].set(-100.0)
        return eqx.tree_at(lambda p: p.net, policy, eqx.tree_at(lambda n: n.biases[-1], net, told))

    now, last, first = (always(mean) for mean in (0.1, 0.2, 0.4))
    shares = {
        f"{number}": lambda b, number=number: jnp.mean(jnp.abs(b.action - number) < 0.05, axis=(0, 2))[None]
        for number in (0.1, 0.2, 0.4)
    }
    dyna = Dyna(changed(TINY, rounds=4, earlier=2, returns=1, batch=4096), Spy(**shares))
    state = dyna.begin(now, 2, KEY)
    assert len(state.earlier) == 2
    objective = Objective(0.9, Trust.off(now, 4))
    run = jax.jit(lambda state: dyna(now, models, objective, starts=starts_at([[1.0]]), state=state, key=KEY)[1])
    after = run(state._replace(earlier=(last, first)))
    jax.tree.map(np.testing.assert_array_equal, after.earlier, (now, last))
    least, most = (np.array([after.learner[f"{number}"][side] for number in (0.1, 0.2, 0.4)]) for side in (0, 1))
    # In the first round one block of five is of the policy itself, then two of six; each earlier one has two always.
    np.testing.assert_allclose(least, np.tile([[1 / 5], [1 / 3], [1 / 3]], 2), atol=0.03)
    np.testing.assert_allclose(most, np.tile([[1 / 3], [2 / 5], [2 / 5]], 2), atol=0.03)


def test_a_learner_is_told_that_a_problem_begins_before_its_first_update(
    linear_task, linear_belief, some_policy, starts_at
):
    task = linear_task(one)
    models = reference_model(linear_belief(task, np.zeros((2, 2, 1))), 2)
    dyna = Dyna(TINY, Spy(begun=lambda b: jnp.ones_like(b.reward)))
    policy = some_policy(task)
    state = DynaState({"begun": jnp.array([[0.5, 5.0], [5.0, 5.0]])}, ())
    objective = Objective(0.9, Trust.off(policy, 4))
    run = jax.jit(lambda key: dyna(policy, models, objective, starts=starts_at([[1.0]]), state=state, key=key)[1])
    told = run(KEY).learner["begun"]
    np.testing.assert_array_equal(told, [[-0.5, 1.0], [5.0, 5.0]])  # less one, once; then ones are seen


@pytest.mark.slow
def test_real_transitions_are_shown_where_asked_for_as_single_steps_without_a_choice_of_optimism(
    linear_task, linear_belief, some_policy, starts_at
):
    task = linear_task(one)
    models = optimistic_model(linear_belief(task, np.zeros((3, 2, 1))), 2, 1.0)
    going, ended = [1.0, 0.5, 7.0, 1.0, 0.0], [1.0, 0.5, 8.0, 1.0, 1.0]
    policy, starts = some_policy(task, extra=1), starts_at([[1.0]], visited=[going, ended])
    looks = {
        "reward": lambda b: b.reward,
        "going": lambda b: jnp.where(b.reward == 7, b.discount, 0.9),
        "ended": lambda b: jnp.where(b.reward == 8, b.discount, 0.0),
        "action": lambda b: jnp.where(b.reward[..., None] > 6, b.action - jnp.array([0.5, 0.0]), 0.0),
    }
    seen = spied(TINY, policy, models, starts, **looks)
    np.testing.assert_allclose(seen["reward"], [[1.0] * 2, [1.9] * 2], rtol=1e-6)  # one step, at the end, or two
    seen = spied(changed(TINY, real=0.5), policy, models, starts, **looks)
    np.testing.assert_allclose(seen["reward"], [[1.0] * 2, [8.0] * 2])
    np.testing.assert_allclose(seen["going"], 0.9, rtol=1e-6)
    np.testing.assert_array_equal(seen["ended"], 0)
    np.testing.assert_array_equal(seen["action"], 0)


# --- settings


@pytest.mark.parametrize(
    "wrong",
    [
        {"rounds": 0},
        {"expanded": 0},
        {"expansion": "mvee"},
        {"real": 1.0},
        {"initial": -1.0},
        {"initial": 0.0, "visited": 0.0, "broad": 0.0},
    ],
)
def test_settings_outside_their_range_are_the_users_mistake(wrong):
    with pytest.raises(UserError):
        DynaSettings(**wrong)
