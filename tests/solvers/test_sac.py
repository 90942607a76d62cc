import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cdpo.dynamics.networks import Normaliser
from cdpo.dynamics.replay import Experience
from cdpo.errors import UserError
from cdpo.solvers.base import Objective, Size, Trust
from cdpo.solvers.critics import bellman_target, reward_range, twin_values
from cdpo.solvers.policy import REACH, counted, entropy_range, kl_divergence, squashed
from cdpo.solvers.sac import SAC, SACSettings

KEY = jax.random.key(0)
M, B, DISCOUNT = 2, 4, 0.9
PLAIN = SACSettings(hidden=(), learning_rate=1e-2)


def free(observation, action, following):
    return jnp.zeros(observation.shape[:-1])


@pytest.fixture(scope="module")
def policy(linear_task, some_policy):
    return some_policy(linear_task(free))


@pytest.fixture(scope="module")
def sac():
    return SAC(PLAIN)


@pytest.fixture(scope="module")
def update(sac):
    """One executable for learners on two models: numbers of their settings are values."""

    @jax.jit
    def run(learner, policy, state, batch, trust, key):
        return learner.update(policy, state, alone(batch), Objective(DISCOUNT, trust), key)

    return lambda *given, learner=sac: run(learner, *given)


@pytest.fixture(scope="module")
def state(sac, policy):
    """Targets that differ from the critics, and rewards of a range that clips nothing."""
    begun = sac.begin(policy, M, KEY)
    targets = jax.tree.map(lambda leaf: leaf + 0.5, begun.targets)
    return begun._replace(targets=targets, rewards=jnp.array([-1e3, 1e3]))


@pytest.fixture(scope="module")
def trust(policy):
    """Off, around a policy that differs, with all states the same so that any of them stand for all."""
    centre = jax.tree.map(lambda leaf: leaf + 0.1, policy)
    states = jnp.full((16, 1), 0.3)
    return Trust.around(centre, states, states, jnp.asarray(0.1), active=False)


def some_batch(seed=0, models=M, rows=B):
    rng = np.random.default_rng(seed)
    draw = lambda *tail: jnp.asarray(rng.normal(size=(models, rows, *tail)), jnp.float32)  # noqa: E731
    discount = jnp.asarray(rng.choice([0.0, 0.9, 0.81], size=(models, rows)), jnp.float32)
    return Experience(draw(1), jnp.tanh(draw(1)), draw(), draw(1), discount, jnp.ones_like(discount))


def alone(batch):
    """The only batch of an update."""
    return jax.tree.map(lambda x: x[None], batch)


def critics_say(critics, policy, observation, action):
    """Q of linear critics [M, 2, B], in float64."""
    weight, bias = np.asarray(critics.weights[0], np.float64), np.asarray(critics.biases[0], np.float64)
    seen = np.concatenate([np.asarray(policy.inputs(observation)), action], axis=-1)
    return (np.einsum("mbi,mtio->mtbo", seen, weight) + bias[:, :, None])[..., 0]


def active(trust, bound):
    return eqx.tree_at(lambda t: (t.bound, t.active), trust, (jnp.asarray(bound), jnp.asarray(True)))


@pytest.mark.parametrize("bounds", [(-1e3, 1e3), (-0.1, 0.2)])
def test_the_bellman_target_is_reward_and_the_worse_twins_soft_value_unless_the_task_ended(policy, state, bounds):
    batch, temperature = some_batch(), 0.3
    batch = batch._replace(discount=jnp.array([[0.0, 0.9, 0.81, 0.9], [0.9, 0.9, 0.0, 0.9]]))
    target = bellman_target(policy, state.targets, alone(batch), jnp.asarray(temperature), jnp.asarray(bounds), KEY)[0]
    action, density = (np.asarray(part)[0] for part in policy.sample(batch.next[None], KEY))
    value = critics_say(state.targets, policy, batch.next, action).min(axis=1)
    by_hand = batch.reward + batch.discount * (np.clip(value, *bounds) - temperature * density)
    np.testing.assert_allclose(target, by_hand, rtol=1e-4, atol=1e-4)
    ended = np.asarray(batch.discount) == 0
    np.testing.assert_array_equal(np.asarray(target)[ended], np.asarray(batch.reward)[ended])


@pytest.mark.slow
def test_where_there_are_only_costs_entropy_may_be_worth_more(policy):
    told = dataclasses.replace(PLAIN, polyak=0.1, temperature=0.5, temperature_rate=1e-9)
    sac, blank, actions = SAC(told), jnp.zeros((1, 64, 1)), jnp.linspace(-1, 1, 64).reshape(1, 64, 1)
    batch = Experience(blank, actions, jnp.full((1, 64), -0.1), blank, jnp.full((1, 64), DISCOUNT), jnp.ones((1, 64)))
    objective = Objective(DISCOUNT, Trust.off(policy))

    def step(carry, key):
        policy, state, metrics = sac.update(*carry, alone(batch), objective, key)
        return (policy, state), metrics

    begin = policy, sac.begin(policy, 1, KEY)
    _, metrics = jax.jit(lambda: jax.lax.scan(step, begin, jax.random.split(KEY, 2000)))()
    entropy, value = (float(np.mean(metrics[name][-200:])) for name in ("entropy", "value"))
    assert value == pytest.approx((-0.1 + DISCOUNT * 0.5 * entropy) / (1 - DISCOUNT), rel=0.05)
    assert value > 1


def test_no_part_of_an_action_has_more_or_less_entropy_than_the_range_says():
    least, largest = entropy_range()
    draws = np.random.default_rng(0).normal(size=20_000)
    for mean in (-REACH, -1.0, 0.0, REACH):
        for log_deviation in np.linspace(-5, 1, 13):
            raw = mean + np.exp(log_deviation) * draws
            density = -0.5 * draws**2 - log_deviation - 0.5 * np.log(2 * np.pi)
            entropy = -np.mean(density - 2 * (np.log(2) - raw - np.logaddexp(0, -2 * raw)))
            assert least - 0.02 < entropy < largest + 0.02


def test_the_range_of_rewards_is_of_means_per_step_and_only_widens():
    def widened(known, reward, steps):
        nothing, discount = jnp.zeros((1, len(reward), 1)), jnp.full((1, len(reward)), 0.9)
        batch = Experience(nothing, nothing, jnp.asarray([reward]), nothing, discount, jnp.asarray([steps]))
        return np.asarray(reward_range(jnp.asarray(known), batch))

    np.testing.assert_allclose(widened([0.0, 0.0], [2.0, -3.0], [1.0, 1.0]), [-3, 2], rtol=1e-5)
    np.testing.assert_allclose(widened([-5.0, 7.0], [2.0, -3.0], [1.0, 1.0]), [-5, 7], rtol=1e-5)
    np.testing.assert_allclose(widened([0.0, 0.0], [1.9, 2.71], [1.9, 2.71]), [0, 1], rtol=1e-5)  # of 1 each


def test_the_range_of_rewards_counts_the_steps_before_an_end():
    three = 1 + 0.9 + 0.81  # a reward of one in each of three steps, the last of which ended the task
    nothing = jnp.zeros((1, 1, 1))
    batch = Experience(nothing, nothing, jnp.asarray([[three]]), nothing, jnp.zeros((1, 1)), jnp.asarray([[three]]))
    np.testing.assert_allclose(reward_range(jnp.zeros(2), batch), [0, 1], rtol=1e-5)


def test_targets_move_towards_the_critics_by_the_small_share(policy, state, update, trust):
    _, after, _ = update(policy, state, some_batch(), trust, KEY)
    by_hand = jax.tree.map(lambda new, old: 0.02 * new + 0.98 * old, after.critics, state.targets)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), after.targets, by_hand)
    gap = lambda s: np.abs(np.asarray(s.targets.weights[0] - after.critics.weights[0])).mean()  # noqa: E731
    assert 0.9 * gap(state) < gap(after) < gap(state)


def test_a_critic_learns_from_its_own_models_batch_only(policy, state, update, trust):
    first, second = some_batch(0), some_batch(1)
    mixed = jax.tree.map(lambda a, b: jnp.stack([a[0], b[1]]), first, second)
    results = [update(policy, state, batch, trust, KEY)[1] for batch in (first, mixed)]
    here, there = (np.asarray(each.critic_optimiser[0].mu.weights[0]) for each in results)  # a share of the gradient
    np.testing.assert_array_equal(here[0], there[0])
    assert np.all(here[1] != there[1])
    np.testing.assert_array_equal(*(each.critics.weights[0][0] for each in results))


def test_critics_descend_the_squared_error_to_the_target(policy, state, update, trust):
    batch = some_batch()
    first = jax.random.split(KEY, 3)[0]
    target = bellman_target(
        policy, state.targets, alone(batch), jnp.exp(state.log_temperature), state.rewards / (1 - DISCOUNT), first
    )[0]
    error = critics_say(state.critics, policy, batch.observation, batch.action) - np.asarray(target)[:, None]
    _, after, metrics = update(policy, state, batch, trust, KEY)
    assert metrics["critic_loss"] == pytest.approx(np.mean(error**2) * 2, rel=1e-4)  # of both twins
    slope = np.sign(error.mean(axis=-1))  # of a bias
    moved = np.sign(np.asarray(after.critics.biases[0] - state.critics.biases[0]))[..., 0]
    np.testing.assert_array_equal(moved, -slope)


def test_a_pooled_critic_is_one_critic_on_the_data_of_all_models(policy, trust):
    pooled, single = SAC(SACSettings(hidden=(), critic="pooled")), SAC(SACSettings(hidden=()))
    begun = pooled.begin(policy, M, KEY)
    assert begun.critics.weights[0].shape[:2] == (1, 2)
    jax.tree.map(np.testing.assert_array_equal, begun, single.begin(policy, 1, KEY))
    batch = some_batch()
    joined = jax.tree.map(lambda x: x.reshape(1, -1, *x.shape[2:]), batch)
    objective = Objective(DISCOUNT, trust)
    one = jax.jit(lambda b: pooled.update(policy, begun, alone(b), objective, KEY))(batch)
    other = jax.jit(lambda b: single.update(policy, begun, alone(b), objective, KEY))(joined)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), one, other)


def test_several_steps_of_the_critics_share_their_targets_and_the_policy_makes_one(policy, trust):
    several, single = SAC(SACSettings(hidden=(), critic_steps=3)), SAC(SACSettings(hidden=()))
    begun, objective = several.begin(policy, M, KEY), Objective(DISCOUNT, trust)
    batches = jax.tree.map(lambda *each: jnp.stack(each), *(some_batch(seed) for seed in range(3)))
    moved, after, _ = jax.jit(lambda b: several.update(policy, begun, b, objective, KEY))(batches)
    assert several.batches == 3
    assert (after.critic_optimiser[0].count, after.policy_optimiser[0].count) == (3, 1)
    # Critics that stayed where they were would give the same targets: a step at a time comes to the same.
    first = jax.random.split(KEY, 3)[0]
    rewards = reward_range(begun.rewards, batches)
    target = bellman_target(
        policy, begun.targets, batches, jnp.exp(begun.log_temperature), rewards / (1 - DISCOUNT), first
    )
    action, density = (np.asarray(part) for part in policy.sample(batches.next, first))
    for number in range(3):  # each batch with its own
        value = critics_say(begun.targets, policy, batches.next[number], action[number]).min(axis=1)
        soft = np.clip(value, *(rewards / (1 - DISCOUNT))) - np.exp(begun.log_temperature) * density[number]
        np.testing.assert_allclose(
            target[number], batches.reward[number] + batches.discount[number] * soft, rtol=1e-4, atol=1e-4
        )
    by_hand, optimiser = begun.critics, single._network.init(eqx.filter(begun.critics, eqx.is_array))
    for number in range(3):
        batch = jax.tree.map(lambda x, number=number: x[number], batches)

        def loss(critics, batch=batch, number=number):
            error = twin_values(critics, policy, batch.observation, batch.action) - target[number][:, None]
            return jnp.sum(jnp.mean(error**2, axis=(0, 2)))

        change, optimiser = single._network.update(jax.grad(loss)(by_hand), optimiser)
        by_hand = eqx.apply_updates(by_hand, change)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), after.critics, by_hand)
    assert np.any(np.asarray(moved.net.weights[0] != policy.net.weights[0]))


def test_another_problem_begins_with_policy_steps_of_its_own_size(policy, sac, state, update, trust):
    tight = active(trust, 1e-9)
    pulled = state._replace(log_multiplier=jnp.asarray(7.0))
    moved, after, _ = update(policy, pulled, some_batch(), tight, KEY)
    again = sac.fresh(moved, after)
    jax.tree.map(np.testing.assert_array_equal, again.policy_optimiser, sac.begin(policy, M, KEY).policy_optimiser)
    jax.tree.map(np.testing.assert_array_equal, again._replace(policy_optimiser=0), after._replace(policy_optimiser=0))


def test_the_multiplier_rises_outside_the_bound_falls_inside_and_rests_when_off(policy, state, update, trust):
    spent = float(trust.spent(policy, trust.watched))
    assert spent > 1e-3

    def change(trust):
        return float(update(policy, state, some_batch(), trust, KEY)[1].log_multiplier - state.log_multiplier)

    rate = PLAIN.multiplier_rate
    assert change(active(trust, spent / 10)) == pytest.approx(rate)
    assert change(active(trust, spent / 1.5)) == pytest.approx(0.5 * rate, rel=1e-3)
    assert change(active(trust, 2 * spent)) == pytest.approx(-0.5 * rate, rel=1e-3)
    assert change(trust) == 0


def test_the_policys_gradient_has_the_multipliers_share_of_the_divergence_when_the_trust_region_is_on(
    policy, state, update, trust
):
    state = state._replace(log_multiplier=jnp.asarray(1.0))

    def gradient(trust):
        moment = update(policy, state, some_batch(), trust, KEY)[1].policy_optimiser[0].mu
        return jax.tree.map(lambda leaf: np.asarray(leaf) / 0.1, moment)  # Adam's first moment after a step

    divergence = jax.grad(lambda net: trust.spent(eqx.tree_at(lambda p: p.net, policy, net), trust.watched))(policy.net)
    jax.tree.map(
        lambda on, off, kl: np.testing.assert_allclose((1 + np.e) * on - off, np.e * kl, rtol=1e-2, atol=1e-3),
        gradient(active(trust, 0.1)),
        gradient(trust),
        divergence,
    )


def test_in_the_policys_gradient_the_temperature_weighs_the_log_density(policy, state, update, trust):
    batch = some_batch()
    batch = batch._replace(discount=0 * batch.discount)  # so that critics do not see the temperature

    def gradient(temperature):
        hot = state._replace(log_temperature=jnp.log(jnp.asarray(temperature)))
        moment = update(policy, hot, batch, trust, KEY)[1].policy_optimiser[0].mu
        return jax.tree.map(lambda leaf: np.asarray(leaf) / 0.1, moment)

    def density(net):
        here = eqx.tree_at(lambda p: p.net, policy, net)(batch.observation)
        return jnp.mean(squashed(here, jax.random.split(KEY, 3)[1], 1)[1])

    jax.tree.map(
        lambda hot, cool, expected: np.testing.assert_allclose(hot - cool, 2 * expected, rtol=1e-2, atol=1e-3),
        gradient(3.0),
        gradient(1.0),
        jax.grad(density)(policy.net),
    )


def test_far_from_the_centre_the_divergence_pulls_as_it_is_counted(policy, state, update, trust):
    far = eqx.tree_at(lambda t: t.chosen.mean, trust, trust.chosen.mean + 30.0)
    state = state._replace(log_multiplier=jnp.asarray(7.0))
    moment = update(policy, state, some_batch(), active(far, 0.1), KEY)[1].policy_optimiser[0].mu

    def pull(net, count):
        return jnp.mean(count(kl_divergence(eqx.tree_at(lambda p: p.net, policy, net)(far.watched), far.chosen)))

    assert pull(policy.net, lambda kl: kl) > 50
    # With such a multiplier there is nothing else; a moment is a tenth of the gradient.
    for count, equal in ((counted, True), (lambda kl: kl, False)):
        gradient = jax.grad(pull)(policy.net, count).biases[-1]
        assert np.allclose(10 * moment.biases[-1], gradient, rtol=0.02) == equal


def test_a_trust_region_that_is_off_changes_nothing(policy, state, update, trust):
    elsewhere = eqx.tree_at(lambda t: (t.centre, t.watched), trust, (policy, jnp.full((16, 1), 2.0)))
    results = [update(policy, state, some_batch(), each, KEY)[:2] for each in (trust, elsewhere)]
    jax.tree.map(np.testing.assert_array_equal, *results)


@pytest.mark.parametrize(("noise", "direction"), [(-4.0, 1), (4.0, -1)])
def test_the_entropys_weight_grows_when_the_policy_has_too_little_noise(policy, state, update, trust, noise, direction):
    bias = policy.net.biases[-1].at[1].set(noise)
    other = eqx.tree_at(lambda p: p.net.biases[-1], policy, bias)
    _, after, _ = update(other, state, some_batch(), trust, KEY)
    assert np.sign(after.log_temperature - state.log_temperature) == direction


def test_the_logarithm_of_the_entropys_weight_moves_by_its_rate(policy, state, update, trust):
    quick = SAC(dataclasses.replace(PLAIN, temperature_rate=0.05))
    _, after, _ = update(policy, state, some_batch(), trust, KEY, learner=quick)
    assert abs(after.log_temperature - state.log_temperature) == pytest.approx(0.05, rel=1e-3)  # Adam's first step


@pytest.mark.slow
@pytest.mark.parametrize(("negentropy", "direction"), [(0.01, 1), (5.0, -1)])
def test_the_same_noise_is_too_little_or_too_much_by_the_entropy_that_is_to_be_held(
    policy, trust, negentropy, direction
):
    sac = SAC(dataclasses.replace(PLAIN, holds="entropy", negentropy=negentropy))
    state = sac.begin(policy, M, KEY)
    noisy = eqx.tree_at(lambda p: p.net.biases[-1], policy, policy.net.biases[-1].at[1].set(-2.0))
    _, after, told = sac.update(noisy, state, alone(some_batch()), Objective(DISCOUNT, trust), KEY)
    assert np.sign(after.log_temperature - state.log_temperature) == direction
    assert np.sign(-negentropy - told["entropy"]) == direction


@pytest.mark.slow
@pytest.mark.parametrize("holds", ["deviation", "entropy"])
@pytest.mark.parametrize(("noise", "beside", "direction"), [(-4.0, 4.0, 1), (0.0, -4.0, -1)])
def test_noise_of_what_is_chosen_beside_the_action_is_neither_held_nor_rewarded(
    linear_task, some_policy, trust, holds, noise, beside, direction
):
    policy = some_policy(linear_task(free), extra=1)  # its last biases: two means, two log-deviations
    sac = SAC(dataclasses.replace(PLAIN, holds=holds))
    state = sac.begin(policy, M, KEY)
    batch = some_batch()
    batch = batch._replace(action=jnp.concatenate([batch.action, 0 * batch.action], axis=-1))
    weights = state.critics.weights[0].at[..., -1, :].set(0.0)  # critics to whom that choice is all the same
    state = state._replace(critics=eqx.tree_at(lambda c: c.weights[0], state.critics, weights))
    centre = Trust.around(policy, trust.watched, trust.checked, jnp.asarray(0.1), active=False)
    bias = policy.net.biases[-1].at[2].set(noise).at[3].set(beside)
    other = eqx.tree_at(lambda p: p.net.biases[-1], policy, bias)
    after, learned, _ = sac.update(other, state, alone(batch), Objective(DISCOUNT, centre), KEY)
    assert np.sign(learned.log_temperature - state.log_temperature) == direction
    moved = np.asarray(after.net.biases[-1] - other.net.biases[-1])
    assert moved[0] != 0 and moved[2] != 0 and moved[1] == moved[3] == 0


def test_renormalised_critics_give_the_same_values_of_rewards_as_they_were_paid(policy, sac, state):
    other = policy.renormalised(Normaliser(jnp.array([2.0]), jnp.array([0.5])))
    after = sac.renormalised(state, policy, other, Size(jnp.asarray(7.0), jnp.asarray(90.0)))
    batch = some_batch()
    before, now = (
        s.scale * critics_say(s.critics, p, batch.observation, batch.action)
        for s, p in ((state, policy), (after, other))
    )
    np.testing.assert_allclose(now, before, rtol=1e-4, atol=1e-4)
    assert after.scale == 7
    assert sac.renormalised(after, other, policy, Size(jnp.asarray(0.01), jnp.asarray(90.0))).scale == 1


@pytest.mark.parametrize(
    "wrong", [{"polyak": 0.0}, {"polyak": 1.5}, {"deviation": 0.0}, {"critic": "none"}, {"critic_steps": 0}]
)
def test_settings_outside_their_range_are_the_users_mistake(wrong):
    with pytest.raises(UserError):
        SACSettings(**wrong)
