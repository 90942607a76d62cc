"""Value expansion on models whose sums are known."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cdpo.dynamics.models import reference_model, sampled_models
from cdpo.dynamics.networks import MLP
from cdpo.dynamics.replay import Experience
from cdpo.solvers.base import Objective, Trust
from cdpo.solvers.critics import expanded_target
from cdpo.solvers.dyna import Dyna, DynaSettings
from cdpo.solvers.expansion import expand
from cdpo.solvers.mpo import MPO, MPOSettings
from cdpo.solvers.sac import SAC, SACSettings

KEY = jax.random.key(0)
DISCOUNT, STEPS = 0.9, 3
FREE = jnp.array([-1e6, 1e6])
rolled = eqx.filter_jit(expand)


def reached(observation, action, following):
    return following[..., 0]


def low(observation, action, following):
    return following[..., 0] < 0.3


def some_batches(state, discount=DISCOUNT, shape=(2, 2, 3)):
    """[K, M, B] transitions that led to `state` with a reward of ten."""
    place, full = jnp.full((*shape, 1), state, jnp.float32), jnp.ones(shape)
    return Experience(place, jnp.zeros((*shape, 1)), 10 * full, place, discount * full, full)


def critics_that_say(twins):
    """For two models: the same of everything, by twin."""
    bias = jnp.broadcast_to(jnp.asarray(twins, jnp.float32)[:, None], (2, 2, 1))
    return MLP((jnp.zeros((2, 2, 2, 1)),), (bias,), "relu", False)


def aimed(policy, futures, twins):
    return expanded_target(policy, critics_that_say(twins), futures, jnp.zeros(()), FREE, KEY)


@pytest.fixture(scope="module")
def halving(linear_task, linear_belief, some_policy):
    """s' = s / 2 in the reference and both heads, which is what a step pays."""
    task = linear_task(reached)
    return some_policy(task), linear_belief(task, [[[-0.5], [0.0]]] * 3)


def test_the_longest_future_is_the_sum_of_its_rewards_and_the_worse_critics_value(halving):
    policy, belief = halving
    futures = rolled("mve", policy, reference_model(belief, 2), some_batches(1.0), KEY, steps=STEPS, discount=DISCOUNT)
    assert futures.reward.shape == (1, 1, 2, 2, 3)
    target, _ = aimed(policy, futures, (100.0, 70.0))
    by_hand = 10 + sum(DISCOUNT ** (i + 1) * 0.5 ** (i + 1) for i in range(STEPS)) + DISCOUNT ** (STEPS + 1) * 70
    np.testing.assert_allclose(target, by_hand, rtol=1e-5)
    np.testing.assert_allclose(futures.next, 0.5**STEPS, rtol=1e-6)


def test_all_lengths_are_rolled_each_further_by_a_step(halving):
    policy, belief = halving
    models = sampled_models(belief, 2, "subset", KEY)
    futures = rolled("steve", policy, models, some_batches(1.0), KEY, steps=STEPS, discount=DISCOUNT)
    assert futures.reward.shape == (1 + STEPS, 1 + 2, 2, 2, 3)
    for length in range(1 + STEPS):
        sum_ = 10 + sum(DISCOUNT ** (i + 1) * 0.5 ** (i + 1) for i in range(length))
        np.testing.assert_allclose(futures.reward[length], sum_, rtol=1e-5)
        np.testing.assert_allclose(futures.next[length], 0.5**length, rtol=1e-5)
        np.testing.assert_allclose(futures.discount[length], DISCOUNT ** (1 + length), rtol=1e-5)


@pytest.mark.slow
def test_where_entropy_is_all_that_is_earned_every_length_aims_at_the_same(linear_task, linear_belief, some_policy):
    task = linear_task(lambda observation, action, following: 0 * following[..., 0])
    policy, belief = some_policy(task), linear_belief(task, [[[-0.5], [0.0]]] * 3)
    policy = eqx.tree_at(lambda p: p.net, policy, jax.tree.map(jnp.zeros_like, policy.net))  # the same everywhere
    entropy = -float(jnp.mean(policy.sample(jnp.zeros((20_000, 1)), jax.random.key(1))[1]))
    temperature = 0.5
    lasting = temperature * entropy * DISCOUNT / (1 - DISCOUNT)  # of all that follows the next action
    batches = some_batches(1.0, shape=(1, 2, 4_000))._replace(reward=jnp.zeros((1, 2, 4_000)))
    models = sampled_models(belief, 2, "subset", KEY)
    futures = rolled("steve", policy, models, batches, KEY, steps=STEPS, discount=DISCOUNT)
    for length in range(1 + STEPS):
        one = jax.tree.map(lambda leaf, length=length: leaf[length : length + 1], futures)
        target, _ = expanded_target(policy, critics_that_say((lasting,) * 2), one, jnp.asarray(temperature), FREE, KEY)
        assert float(jnp.mean(target)) == pytest.approx(lasting, rel=0.02)


@pytest.mark.slow
def test_where_models_agree_the_lengths_are_weighed_by_the_twins_alone(halving):
    policy, belief = halving
    models = sampled_models(belief, 2, "subset", KEY)
    futures = rolled("steve", policy, models, some_batches(1.0), KEY, steps=1, discount=DISCOUNT)
    target, length = aimed(policy, futures, (100.0, 70.0))
    # The twins differ by 30 of what follows, discounted once or twice.
    certain = 1 / (np.array([DISCOUNT, DISCOUNT**2]) * 15) ** 2
    share = certain / certain.sum()
    lengths = np.array([10 + DISCOUNT * 70, 10 + DISCOUNT * 0.5 + DISCOUNT**2 * 70])
    np.testing.assert_allclose(target, share @ lengths, rtol=1e-4)
    np.testing.assert_allclose(length, share[1], rtol=1e-4)


def test_lengths_at_which_heads_disagree_weigh_less_and_the_own_model_is_what_is_aimed_at(
    linear_task, linear_belief, some_policy
):
    task = linear_task(reached)
    belief = linear_belief(task, [[[-0.5], [0.0]], [[-0.5], [0.0]], [[30.0], [0.0]]])
    policy = some_policy(task)
    futures = rolled(
        "steve", policy, reference_model(belief, 2), some_batches(1.0), KEY, steps=STEPS, discount=DISCOUNT
    )
    np.testing.assert_allclose(futures.next[1, :, 0, 0, 0, 0], [0.5, *futures.next[1, 1:, 0, 0, 0, 0]], rtol=1e-5)
    assert sorted(np.asarray(futures.next[1, 1:, 0, 0, 0, 0])) == pytest.approx([0.5, 31.0])
    target, length = aimed(policy, futures, (70.0, 70.0))
    np.testing.assert_allclose(target, 10 + DISCOUNT * 70, rtol=1e-4)
    assert length < 1e-3


@pytest.mark.parametrize("kind", ["mve", "steve"])
def test_nothing_follows_an_end_inside_or_before(linear_task, linear_belief, some_policy, kind):
    task = linear_task(reached, low)
    belief = linear_belief(task, [[[-0.5], [0.0]]] * 2)
    policy, models = some_policy(task), reference_model(belief, 2)
    inside = rolled(kind, policy, models, some_batches(1.0), KEY, steps=STEPS, discount=DISCOUNT)
    target, _ = aimed(policy, inside, (1e3, 1e3))
    ended = 10 + DISCOUNT * 0.5 + DISCOUNT**2 * 0.25  # at 0.25
    np.testing.assert_allclose(inside.reward[-1], ended, rtol=1e-5)
    np.testing.assert_array_equal(inside.discount[-1], 0)
    if kind == "mve":
        np.testing.assert_allclose(target, ended, rtol=1e-5)
    before = rolled(kind, policy, models, some_batches(1.0, discount=0.0), KEY, steps=STEPS, discount=DISCOUNT)
    np.testing.assert_allclose(aimed(policy, before, (1e3, 1e3))[0], 10.0, rtol=1e-6)


def test_the_same_noise_acts_under_every_model(linear_task, linear_belief, some_policy):
    task = linear_task(reached)
    belief = linear_belief(task, [[[0.0], [0.5]]] * 3)  # s' = s + a / 2
    policy, models = some_policy(task), reference_model(belief, 2)
    rng = np.random.default_rng(0)
    batches = some_batches(0.0)._replace(next=jnp.asarray(rng.normal(size=(2, 2, 3, 1)), jnp.float32))
    futures = rolled("steve", policy, models, batches, KEY, steps=STEPS, discount=DISCOUNT)
    for head in (1, 2):
        np.testing.assert_allclose(futures.next[:, head], futures.next[:, 0], rtol=1e-4, atol=1e-5)
    assert np.unique(np.asarray(futures.next[1, 0]).round(6)).size == 12  # and each row has its own
    np.testing.assert_array_equal(futures.next[0, 0], batches.next)


slow = pytest.mark.slow


@pytest.mark.slow
@pytest.mark.parametrize(
    ("learner", "kind", "critic"),
    [
        (SAC(SACSettings(hidden=(8,), learning_rate=0.05)), "steve", "pooled"),
        pytest.param(SAC(SACSettings(hidden=(8,), learning_rate=0.05)), "mve", "per-model", marks=slow),
        pytest.param(MPO(MPOSettings(hidden=(8,), learning_rate=0.05)), "steve", "per-model", marks=slow),
        pytest.param(MPO(MPOSettings(hidden=(8,), learning_rate=0.05)), "mve", "pooled", marks=slow),
    ],
    ids=["sac steve", "sac mve", "mpo steve", "mpo mve"],
)
def test_off_policy_learners_take_it(halving, starts_at, learner, kind, critic):
    policy, belief = halving
    told = DynaSettings(
        rounds=1, updates=2, particles=2, horizon=2, batch=4, real=0.5, expansion=kind, expanded=STEPS
    )  # fmt: skip
    dyna = Dyna(told, type(learner)(replace(learner.settings, critic=critic)))
    starts = starts_at([[1.0]], visited=[[1.0, 0.5, 7.0, 1.0, 0.0]])

    @jax.jit
    def solve(key):
        state = dyna.begin(policy, 2, key)
        objective = Objective(DISCOUNT, Trust.off(policy, 4))
        return dyna(policy, reference_model(belief, 2), objective, starts=starts, state=state, key=key)

    after, _, metrics = solve(KEY)
    assert np.any(np.asarray(after.net.weights[0] != policy.net.weights[0]))
    assert all(np.all(np.isfinite(value)) for value in metrics.values())
    assert 0 <= metrics["expanded"] <= STEPS and (metrics["expanded"] > 0) == (kind == "steve")
