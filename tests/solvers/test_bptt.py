import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cdpo.dynamics.models import optimistic_model, reference_model, sampled_models
from cdpo.dynamics.networks import Normaliser
from cdpo.errors import UserError
from cdpo.solvers.base import Objective, Size, Trust
from cdpo.solvers.bptt import BPTT, BPTTSettings
from cdpo.solvers.critics import state_values
from cdpo.solvers.policy import HostPolicy, Policy, counted, kl_divergence
from cdpo.solvers.values import roll_out
from cdpo.training.settings import Settings

KEY = jax.random.key(0)
TINY = BPTTSettings(horizon=3, particles=4, updates=4, hidden=(8,), learning_rate=0.05)
KINDS = ("maac", "svg")


def changed(settings, **changes):
    return BPTTSettings(**{**vars(settings), **changes})


def steered(observation, action, following):
    """Best at zero, and with no more effort than needed."""
    return -(following[..., 0] ** 2) - 0.1 * action[..., 0] ** 2


def away(policy, by):
    return eqx.tree_at(lambda p: p.net, policy, jax.tree.map(lambda leaf: leaf + by, policy.net))


def test_a_long_gradient_is_shortened_to_the_clip_and_a_short_one_is_as_it_is():
    optimiser = BPTT(changed(TINY, clip=0.5))._climb
    for length, seen in ((40.0, 0.5), (0.2, 0.2)):
        gradient = {"a": jnp.array([0.6, 0.0]) * length, "b": jnp.array([0.8]) * length}
        _, after = optimiser.update(gradient, optimiser.init(gradient))
        [moment] = [
            part.mu for part in jax.tree.leaves(after, is_leaf=lambda x: hasattr(x, "mu")) if hasattr(part, "mu")
        ]
        expected = jax.tree.map(lambda leaf, by=0.1 * seen / length: by * leaf, gradient)  # a tenth of it at first
        jax.tree.map(lambda one, two: np.testing.assert_allclose(one, two, rtol=1e-5), moment, expected)


# --- the objective


def high(observation, action, following):
    return following[..., 0] > 1.5


@pytest.mark.slow(besides="svg-sampled models")
@pytest.mark.parametrize("optimistic", [False, True], ids=["sampled models", "optimistic model"])
@pytest.mark.parametrize("kind", KINDS)
def test_its_gradient_is_that_of_finite_differences(linear_task, linear_belief, some_policy, around, kind, optimistic):
    with jax.enable_x64(True):
        task = linear_task(steered, high)
        belief = linear_belief(task, [[[0.2], [0.1]], [[0.3], [0.2]], [[0.1], [0.1]]])
        models = optimistic_model(belief, 2, 1.0) if optimistic else sampled_models(belief, 2, "subset", KEY)
        solver = BPTT(changed(TINY, kind=kind, horizon=5))
        policy = some_policy(task, extra=1 if optimistic else 0)
        state = solver.begin(policy, 2, KEY)
        exact = lambda tree: jax.tree.map(  # noqa: E731
            lambda leaf: leaf.astype(jnp.float64) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, tree
        )
        policy, models, state, trust = exact((policy, models, state, around(away(policy, 0.1), 0.1)))
        begin = jnp.linspace(-1.0, 1.45, 8).reshape(2, 4, 1)

        @jax.jit
        def loss(net, key):
            def lagrangian(net):
                return solver.lagrangian(net, policy, state, models, Objective(0.9, trust), begin, key)

            return jax.value_and_grad(lagrangian, has_aux=True)(net)

        for number in range(3):
            key, way = jax.random.split(jax.random.key(number))
            (_, (path, _)), gradient = loss(policy.net, key)
            assert 0 < jnp.mean(path.alive[-1]) < 1  # some came to an end
            assert jnp.any(path.kl > 0)
            leaves, shape = jax.tree.flatten(policy.net)
            ways = [
                jax.random.normal(k, x.shape) for k, x in zip(jax.random.split(way, len(leaves)), leaves, strict=True)
            ]
            ahead, back = (
                loss(jax.tree.unflatten(shape, [x + by * w for x, w in zip(leaves, ways, strict=True)]), key)[0][0]
                for by in (1e-6, -1e-6)
            )
            slope = sum(jnp.sum(g * w) for g, w in zip(jax.tree.leaves(gradient), ways, strict=True))
            np.testing.assert_allclose((ahead - back) / 2e-6, slope, rtol=1e-5, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("multiplier", [0.5, 5.0])
def test_the_divergence_along_rollouts_has_the_multipliers_share_when_the_trust_region_is_on(
    linear_task, linear_belief, some_policy, around, multiplier
):
    task = linear_task(steered)
    models = reference_model(linear_belief(task, [[[0.2], [0.5]]]), 1)
    solver, policy = BPTT(TINY), some_policy(task)
    q = away(policy, 0.1)
    state = solver.begin(policy, 1, KEY)._replace(log_multiplier=jnp.log(multiplier))
    begin = jnp.linspace(-1, 1, 4).reshape(1, 4, 1)

    def lagrangian(active):
        objective = Objective(0.9, around(q, 0.1, active=active))
        return solver.lagrangian(policy.net, policy, state, models, objective, begin, KEY)

    (constrained, (path, _)), (free, _) = lagrangian(True), lagrangian(False)
    here = path.states[:-1]
    divergence = np.mean(counted(kl_divergence(policy(here), q(here))), axis=(1, 2))
    spent = np.average(divergence, weights=0.9 ** np.arange(TINY.horizon))
    assert spent > 0.01
    np.testing.assert_allclose((1 + multiplier) * constrained, free + multiplier * spent, rtol=1e-4)


@pytest.mark.slow
def test_the_noise_of_every_part_is_held(linear_task, linear_belief, starts_at):
    task = linear_task(steered, actions=2)
    models = reference_model(linear_belief(task, [[[0.0], [0.5], [0.0]]]), 1)
    bptt = BPTT(changed(TINY, kind="svg", updates=60, deviation=0.5))
    policy = Policy.create(task, models.belief.ensemble.inputs, (8,), KEY)
    apart = eqx.tree_at(lambda p: p.net.biases[-1], policy, jnp.array([0.0, 0.0, 0.5, -2.0]))
    starts = starts_at([[0.0]], weights=(0.0, 0.0, 1.0), low=-1.0, high=1.0, actions=2)
    objective = Objective(0.8, Trust.off(policy, 4))
    solve = jax.jit(lambda key: bptt(apart, models, objective, starts=starts, state=bptt.begin(apart, 1, key), key=key))
    better, _, _ = solve(KEY)
    np.testing.assert_allclose(better(jnp.linspace(-1, 1, 5)[:, None]).log_deviation, np.log(0.5), atol=0.3)


@pytest.mark.slow
def test_heads_that_agree_leave_the_optimistic_model_a_gradient(linear_task, linear_belief, some_policy):
    task = linear_task(steered)
    models = optimistic_model(linear_belief(task, np.full((3, 2, 1), 0.1)), 2, 1.0)
    solver, policy = BPTT(TINY), some_policy(task, extra=1)
    arguments = policy, solver.begin(policy, 2, KEY), models, Objective(0.9, Trust.off(policy, 4)), jnp.ones((2, 4, 1))
    gradient, _ = jax.jit(jax.grad(lambda net: solver.lagrangian(net, *arguments, KEY), has_aux=True))(policy.net)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    assert any(np.any(np.asarray(leaf) != 0) for leaf in jax.tree.leaves(gradient))


def short_of_two(observation, action, following):
    """No number beyond two."""
    return jnp.log(2 - following[..., 0])


def beyond_one(observation, action, following):
    return following[..., 0] > 1


@pytest.mark.slow
def test_nothing_after_a_termination_counts(linear_task, linear_belief, some_policy):
    task = linear_task(short_of_two, beyond_one)
    models = reference_model(linear_belief(task, [[[1.0], [0.0]]]), 1)  # s' = 2 s
    policy = some_policy(task)
    begin = jnp.array([[[0.3], [0.1]]])  # 0.6, 1.2; and 0.2, 0.4, 0.8, 1.6
    path = jax.jit(lambda: roll_out(policy, away(policy, 0.1), models, begin, KEY, 5))()
    np.testing.assert_array_equal(path.alive[:, 0], np.array([[1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0]]).T)
    np.testing.assert_allclose(path.reward[:, 0, 0], [np.log(1.4), np.log(0.8), 0, 0, 0], rtol=1e-4, atol=1e-6)
    for part in (path.kl, path.log_deviation):
        assert np.all(np.asarray(part[2:, 0, 0]) == 0) and np.all(np.asarray(part[:2, 0, 0]) != 0)
    assert path.average(jnp.ones_like(path.reward), 0.9) == pytest.approx(1)

    solver = BPTT(changed(TINY, horizon=5))
    state = solver.begin(policy, 1, KEY)
    state = state._replace(bounds=jnp.array([-1e6, 1e6]))
    huge = eqx.tree_at(lambda s: s.critics.targets.biases[-1], state, jnp.full((1, 1), 1e6))
    objective = Objective(0.9, Trust.off(policy, 4))
    loss = jax.jit(
        lambda state, begin: eqx.filter_value_and_grad(solver.lagrangian, has_aux=True)(
            policy.net, policy, state, models, objective, begin, KEY
        )
    )
    (_, (_, returns)), gradient = loss(
        eqx.tree_at(lambda s: s.critics.targets.biases[-1], huge, jnp.zeros((1, 1))), begin
    )
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    (_, (_, trusting)), _ = loss(huge, begin)
    assert np.all(np.asarray(trusting[1, 0, 0] == returns[1, 0, 0]))  # the step into the end: its reward alone
    assert returns[1, 0, 0] == pytest.approx(np.log(0.8), rel=1e-4)
    assert trusting[0, 0, 0] > 1e3  # before it a value may be asked
    (_, (_, doubting)), _ = loss(huge._replace(bounds=jnp.zeros(2)), begin)
    assert doubting[0, 0, 0] < 10 * np.log(2)  # within what the rewards seen can add up to


# --- the whole


def test_values_survive_another_normaliser_and_another_size_of_rewards(linear_task, some_policy):
    solver, policy = BPTT(TINY), some_policy(linear_task(steered))
    new = policy.renormalised(Normaliser(jnp.array([3.0]), jnp.array([0.2])))
    state = solver.begin(policy, 2, KEY)
    again = solver.renormalised(state, policy, new, Size(jnp.asarray(5.0), jnp.asarray(5.0)))
    places = jnp.linspace(-2, 2, 12).reshape(2, 2, 3, 1)
    for old, now in ((state.critics.nets, again.critics.nets), (state.critics.targets, again.critics.targets)):
        np.testing.assert_allclose(
            state_values(old, policy, places), 5 * state_values(now, new, places), rtol=1e-3, atol=1e-4
        )
    assert again.scale == 5


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_on_an_exact_model_the_policy_finds_the_best_actions(linear_task, linear_belief, starts_at, kind):
    task = linear_task(steered)
    belief = linear_belief(task, [[[0.0], [0.5]]])  # s' = s + a / 2
    horizon = {"maac": 3, "svg": 8}[kind]
    bptt = BPTT(changed(TINY, kind=kind, horizon=horizon, particles=16, updates=150, hidden=(16,), learning_rate=0.01))
    policy = Policy.create(task, belief.ensemble.inputs, (16,), jax.random.key(2))
    starts = starts_at([[0.0]], weights=(0.0, 0.0, 1.0), low=-1.0, high=1.0)

    @jax.jit
    def solve(key):
        objective = Objective(0.8, Trust.off(policy, 4))
        return bptt(
            policy, reference_model(belief, 1), objective, starts=starts, state=bptt.begin(policy, 1, key), key=key
        )

    better, _, metrics = solve(KEY)
    act, state = HostPolicy(better), np.array([[-0.8], [0.8]])
    for _ in range(10):
        state = state + 0.5 * act(state)
    assert np.all(np.abs(state) < 0.1)
    assert metrics["log_deviation"] == pytest.approx(np.log(bptt.settings.deviation), abs=0.2)
    assert 0 < metrics["gradient_norm"] <= metrics["gradient_norm_max"]


# --- settings


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"horizon": 0}, "bptt.horizon must be at least 1"),
        ({"horizon": 2.5}, "must be of type int"),
        ({"particles": 0}, "bptt.particles must be at least 1"),
        ({"updates": 0}, "bptt.updates must be at least 1"),
        ({"critic_steps": 0}, "bptt.critic_steps must be at least 1"),
        ({"clip": 0.0}, "bptt.clip must be above 0"),
        ({"trace": 1.5}, "bptt.trace must be between 0 and 1"),
        ({"polyak": 0.0}, "bptt.polyak must be in (0, 1]"),
        ({"kind": "mac"}, "did you mean 'maac'"),
        ({"initial": 0.0, "visited": 0.0, "broad": 0.0}, "bptt.broad must not all be zero"),
    ],
)
def test_settings_outside_their_range_are_told_in_one_line(wrong, word):
    with pytest.raises(UserError) as told:
        Settings(solver="bptt").changed(bptt=wrong)
    assert word in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize("change", [{}, {"kind": "svg"}, {"horizon": 7, "hidden": (8, 9), "clip": 0.3}])
def test_settings_survive_json(change):
    told = Settings(solver="bptt").changed(bptt=change)
    assert Settings.from_json(json.loads(json.dumps(told.to_json()))) == told


def test_each_kind_has_a_horizon_of_its_own():
    assert BPTTSettings(kind="maac").steps < BPTTSettings(kind="svg").steps
    assert BPTTSettings(kind="svg", horizon=7).steps == 7
