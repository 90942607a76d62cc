import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cdpo.dynamics.models import member_models, optimistic_model, reference_model, sampled_models
from cdpo.dynamics.networks import Normaliser

HEADS, D, B = 3, 2, 4
SCALE = np.array([0.5, 3.0], np.float32)
TARGETS = Normaliser(jnp.array([0.1, -0.2]), jnp.array([0.5, 2.0]))
step = eqx.filter_jit(lambda models, observation, action, key: models.step(observation, action, key))
KEY = jax.random.key(0)


def first_action(observation, action, following):
    return action[..., 0] + 10 * following[..., 0]


def large_action(observation, action, following):
    return action[..., 0] > 1.5  # of [-2, 4]


def inputs(models, seed=0, extra=0):
    rng = np.random.default_rng(seed)
    observation = rng.normal(size=(models, B, D)).astype(np.float32)
    return observation, rng.uniform(-1, 1, size=(models, B, 1 + extra)).astype(np.float32)


def member_says(belief, member, observation, action):
    """The next state by one member, in float64."""
    ensemble = belief.ensemble
    weight, bias = (np.asarray(leaf[0], np.float64)[member] for leaf in (ensemble.net.weights, ensemble.net.biases))
    scores = np.concatenate([observation, action], axis=-1) @ weight + bias
    return scores[..., :D] * np.asarray(TARGETS.deviation) + np.asarray(TARGETS.mean) + observation


@pytest.fixture(scope="module")
def belief(toy, linear_ensemble, believe):
    task = toy(D, reward=first_action, terminates=large_action)
    ensemble = linear_ensemble(task, np.random.default_rng(0), HEADS, targets=TARGETS)
    return believe(task, ensemble, scale=SCALE)


@pytest.mark.parametrize("sampling", ["subset", "mix"])
def test_a_sampled_model_is_the_reference_plus_calibrated_differences_of_heads(belief, sampling):
    models = sampled_models(belief, 2, sampling, KEY)
    observation, action = inputs(2)
    following = step(models, observation, action, KEY).next
    for i in range(2):
        reference = expected = member_says(belief, 0, observation[i], action[i])
        for head, gain in zip(np.asarray(models.heads[i]), np.asarray(models.gain[i]), strict=True):
            expected = expected + gain * (member_says(belief, head, observation[i], action[i]) - reference)
        np.testing.assert_allclose(following[i], expected, rtol=1e-4, atol=1e-3)


def test_a_subset_is_of_distinct_heads_while_there_are_enough_each_with_the_calibrations_scale(belief):
    drawn = [sampled_models(belief, models, "subset", KEY) for models in (HEADS, 2 * HEADS + 1)]
    assert sorted(np.asarray(drawn[0].heads[:, 0])) == [1, 2, 3]
    counts = np.bincount(np.asarray(drawn[1].heads[:, 0]), minlength=1 + HEADS)
    assert sorted(counts) == [0, 2, 2, 3]
    np.testing.assert_array_equal(drawn[1].gain, np.broadcast_to(SCALE, (2 * HEADS + 1, 1, D)))


def test_every_head_is_sampled_as_often(belief):
    draw = jax.jit(jax.vmap(lambda key: sampled_models(belief, 1, "subset", key).heads[0, 0]))
    counts = np.bincount(draw(jax.random.split(KEY, 900)), minlength=4)
    np.testing.assert_allclose(counts[1:], 300, atol=75)
    assert counts[0] == 0


def test_a_mix_has_weights_of_length_one_so_that_averaging_does_not_shrink_the_spread(belief):
    models = sampled_models(belief, 50, "mix", KEY)
    weights = np.asarray(models.gain) / SCALE
    np.testing.assert_array_equal(models.heads, np.tile([1, 2, 3], (50, 1)))
    np.testing.assert_allclose(np.linalg.norm(weights, axis=1), 1, rtol=1e-5)
    assert np.all(weights >= 0)
    np.testing.assert_allclose(weights.std(0) / weights.std(), 1, atol=0.5)  # no head is preferred
    assert len(np.unique(weights[:, 0, 0])) == 50


@pytest.mark.parametrize("heads", [0, 1, HEADS])
def test_the_reference_is_the_least_squares_member_repeated(belief, heads):
    models = reference_model(belief, 2, heads)
    observation, action = inputs(2)
    assert models.heads.shape == (2, heads)
    expected = member_says(belief, 0, observation, action)
    np.testing.assert_allclose(step(models, observation, action, KEY).next, expected, rtol=1e-4, atol=1e-3)


def test_the_reference_can_be_the_mean_of_the_heads_or_another_network(belief):
    observation, action = inputs(2)
    mean = np.mean([member_says(belief, head, observation, action) for head in (1, 2, 3)], axis=0)
    following = step(reference_model(belief, 2, mean=True), observation, action, KEY).next
    np.testing.assert_allclose(following, mean, rtol=1e-4, atol=1e-3)
    other = step(reference_model(belief, 2, net=belief.ensemble.net.member(2)), observation, action, KEY).next
    np.testing.assert_allclose(other, member_says(belief, 2, observation, action), rtol=1e-4, atol=1e-3)


def test_heads_that_have_no_part_in_a_model_are_not_asked(belief):
    mad = jax.tree.map(lambda leaf: leaf.at[1:].set(jnp.nan), belief.ensemble.net)
    models = reference_model(eqx.tree_at(lambda b: b.ensemble.net, belief, mad), 2, heads=1)
    observation, action = inputs(2)
    expected = [member_says(belief, 0, observation[i], action[i]) for i in range(2)]
    np.testing.assert_allclose(step(models, observation, action, KEY).next, expected, rtol=1e-4, atol=1e-3)


def test_a_repeated_reference_has_the_types_of_sampled_models_so_that_one_program_serves_both(belief):
    kinds = [
        [leaf.aval for leaf in jax.tree.leaves(models)]
        for models in (reference_model(belief, 2, 1), sampled_models(belief, 2, "subset", KEY))
    ]
    assert kinds[0] == kinds[1]


def test_the_policys_choice_moves_the_reference_within_the_calibrated_spread(belief):
    models = optimistic_model(belief, 2, beta=1.5)
    observation, action = inputs(2, extra=D)
    members = np.stack([member_says(belief, member, observation, action[..., :1]) for member in range(1 + HEADS)])
    spread = np.sqrt(np.mean((members[1:] - members[0]) ** 2, axis=0))
    following = step(models, observation, action, KEY).next
    np.testing.assert_allclose(following, members[0] + 1.5 * SCALE * spread * action[..., 1:], rtol=1e-4, atol=1e-3)
    still = step(models, observation, np.concatenate([action[..., :1], np.zeros((2, B, D), np.float32)], -1), KEY).next
    np.testing.assert_allclose(still, members[0], rtol=1e-4, atol=1e-3)


def test_states_stay_in_the_range(belief):
    narrow = eqx.tree_at(lambda b: b.range, belief, jnp.array([[-0.1, 0.0], [0.2, 0.5]]))
    observation, action = inputs(1)
    free, kept = (step(reference_model(b, 1), observation, action, KEY).next for b in (belief, narrow))
    np.testing.assert_array_equal(kept, np.clip(free, *np.asarray(narrow.range)))
    assert np.any(kept != free)


def test_known_reward_and_end_are_of_actions_in_the_environments_units_and_of_the_state_reached(belief):
    observation, action = inputs(1)
    taken = step(reference_model(belief, 1), observation, action, KEY)
    real = -2 + 3 * (action[..., 0] + 1)
    np.testing.assert_allclose(belief.task.unscaled(jnp.asarray(action))[..., 0], real, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(belief.task.scaled(belief.task.unscaled(action)), action, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(taken.reward, real + 10 * taken.next[..., 0], rtol=1e-5)
    np.testing.assert_array_equal(taken.terminated, real > 1.5)
    assert 0 < np.sum(taken.terminated) < B


def test_a_learned_reward_is_the_last_target_and_a_learned_end_follows_its_odds(toy, linear_ensemble, believe):
    task = toy(D)
    targets = Normaliser(jnp.array([0.0, 0.0, 5.0]), jnp.array([1.0, 1.0, 3.0]))
    ensemble = linear_ensemble(task, np.random.default_rng(1), HEADS, targets=targets)
    belief = believe(task, ensemble)
    models = reference_model(belief, 1)
    observation, action = (np.repeat(part[:, :1], 4000, axis=1) for part in inputs(1))
    seen = np.concatenate([observation, action], axis=-1)[0, 0]
    said = seen @ np.asarray(ensemble.net.weights[0][0]) + np.asarray(ensemble.net.biases[0][0])
    taken = step(models, observation, action, KEY)
    np.testing.assert_allclose(taken.reward, np.full((1, 4000), said[2] * 3 + 5), rtol=1e-4)
    assert np.mean(taken.terminated) == pytest.approx(1 / (1 + np.exp(-said[3])), abs=0.03)
    assert set(np.unique(taken.terminated)) <= {0.0, 1.0}
    again = step(models, observation, action, jax.random.key(1))
    np.testing.assert_array_equal(again.next, taken.next)  # a key decides only what is random
    np.testing.assert_array_equal(again.reward, taken.reward)
    assert np.any(again.terminated != taken.terminated)
    paid = eqx.tree_at(lambda b: b.rewards, belief, jnp.array([0.0, 1.5]))  # the least and the largest that was seen
    np.testing.assert_array_equal(step(reference_model(paid, 1), observation, action, KEY).reward, 1.5)
    endless = believe(task, ensemble, ends=False)  # of a task that was never seen to end
    np.testing.assert_array_equal(step(reference_model(endless, 1), observation, action, KEY).terminated, 0)


def test_gaussian_members_add_their_calibrated_noise_and_deterministic_ones_nothing(
    belief, toy, linear_ensemble, believe
):
    observation, action = (np.repeat(part[:, :1], 4000, axis=1) for part in inputs(1))
    task = toy(D, reward=first_action, terminates=large_action)
    ensemble = linear_ensemble(task, np.random.default_rng(2), HEADS, gaussian=True, targets=TARGETS)
    noisy = believe(task, ensemble, noise=[0.5, 2.0])
    taken = np.asarray(step(reference_model(noisy, 1), observation, action, KEY).next[0])
    deviation = np.asarray(ensemble.read(ensemble.net(jnp.concatenate([observation, action], -1))).deviation[0, 0])
    np.testing.assert_allclose(taken.std(0), deviation * np.asarray(TARGETS.deviation) * [0.5, 2.0], rtol=0.05)
    expected = member_says(noisy, 0, observation[0, :1], action[0, :1])
    np.testing.assert_allclose(taken.mean(0), expected[0], atol=0.1 * taken.std(0).max())
    calm = [step(reference_model(belief, 1), observation, action, jax.random.key(k)).next for k in (0, 1)]
    np.testing.assert_array_equal(*calm)


def test_every_step_has_a_member_that_is_drawn_for_it_each_serving_as_many_rows(belief):
    models = member_models(belief, jnp.array([3, 1]))
    observation, action = (np.tile(part[:, :1], (2, B, 1)) for part in inputs(1))  # all rows are alike
    said = [member_says(belief, member, observation[0, 0], action[0, 0]) for member in (1, 3)]
    served = np.zeros((200, 2 * B), int)
    for number, key in enumerate(jax.random.split(KEY, 200)):
        following = np.asarray(step(models, observation, action, key).next).reshape(2 * B, D)
        served[number] = [np.argmin([np.abs(row - each).max() for each in said]) for row in following]
        np.testing.assert_allclose(following, np.array(said)[served[number]], rtol=1e-4, atol=1e-3)
    np.testing.assert_array_equal(served.sum(axis=1), B)
    np.testing.assert_allclose(served.mean(axis=0), 0.5, atol=0.12)  # whichever place a row has


def test_a_row_keeps_its_place_whoever_serves_it(belief):
    models = member_models(belief, jnp.array([3, 1]))
    observation, action = inputs(2)
    taken = step(models, observation, action, KEY)
    said = np.stack([member_says(belief, member, observation, action) for member in (1, 3)])
    apart = np.abs(said - np.asarray(taken.next)).max(axis=-1).min(axis=0)  # to the nearer of both, in each place
    np.testing.assert_allclose(apart, 0, atol=1e-3)
    real = -2 + 3 * (action[..., 0] + 1)
    np.testing.assert_allclose(taken.reward, real + 10 * taken.next[..., 0], rtol=1e-5)


def test_members_have_noise_of_their_own_which_the_calibration_of_the_reference_leaves_alone(
    toy, linear_ensemble, believe
):
    task = toy(D, reward=first_action, terminates=large_action)
    ensemble = linear_ensemble(task, np.random.default_rng(2), HEADS, gaussian=True, targets=TARGETS)
    observation, action = (np.repeat(part[:, :1], 4000, axis=1) for part in inputs(1))
    models = member_models(believe(task, ensemble, noise=0.25), jnp.array([2]))
    taken = np.asarray(step(models, observation, action, KEY).next[0])
    deviation = np.asarray(ensemble.read(ensemble.net(jnp.concatenate([observation, action], -1))).deviation[2, 0])
    np.testing.assert_allclose(taken.std(0), deviation * np.asarray(TARGETS.deviation), rtol=0.05)


def test_one_of_some_members_alone(belief):
    observation, action = inputs(1)
    following = step(member_models(belief, jnp.array([3, 1])).only(1), observation, action, KEY).next
    np.testing.assert_allclose(following, member_says(belief, 1, observation, action), rtol=1e-4, atol=1e-3)


def test_one_of_the_models_alone_and_the_first_repeated(belief):
    models = sampled_models(belief, 3, "subset", KEY)
    assert models.only(2).heads.tolist() == models.heads[2:].tolist()
    assert models.only(1).count == 1
    assert models.repeated(4).heads.tolist() == models.heads[:1].tolist() * 4
    assert models.repeated(4).gain.shape == (4, 1, D)


def test_the_belief_predicts_the_references_mean_and_the_calibrated_spread(belief):
    noisy = eqx.tree_at(lambda b: b.calibration.noise, belief, jnp.array([0.3, 0.0]))
    observation, action = (part[0] for part in inputs(1))
    members = np.stack([member_says(belief, member, observation, action) for member in range(1 + HEADS)])
    spread = np.sqrt(np.mean((members[1:] - members[0]) ** 2, axis=0))
    noise = np.array([0.3, 0.0]) * np.asarray(TARGETS.deviation)
    mean, deviation = noisy.predict(observation, action)
    np.testing.assert_allclose(mean, members[0], rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(deviation, np.sqrt((SCALE * spread) ** 2 + noise**2), rtol=1e-3)


def test_the_beliefs_intervals_are_about_the_mean_and_reach_as_far_as_the_map_says(belief):
    mapped = eqx.tree_at(lambda b: b.calibration.reach, belief, belief.calibration.reach * jnp.array([0.5, 2.0]))
    observation, action = (part[0] for part in inputs(1))
    mean, deviation = mapped.predict(observation, action)
    for level, deviations in ((0.5, 0.67449), (0.9, 1.64485), (0.99, 2.57583)):
        low, high = mapped.interval(observation, action, level)
        np.testing.assert_allclose((low + high) / 2, mean, rtol=1e-4, atol=1e-3)
        np.testing.assert_allclose((high - low) / 2, deviations * deviation * np.array([0.5, 2.0]), rtol=1e-3)
