from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdpo.dynamics.ensemble import Ensemble, EnsembleSettings, fit, split_rows_of, unrolled_loss, weighted
from cdpo.dynamics.networks import Normaliser
from cdpo.dynamics.replay import Replay, Transition
from cdpo.errors import UserError

few = settings(derandomize=True, max_examples=10, deadline=None)
SMALL = EnsembleSettings(heads=2, hidden=(16,), steps=600, check=20, batch=32, learning_rate=1e-2)
CAPACITY, ROWS = 128, 100
KEY = jax.random.key(5)
split_of = eqx.filter_jit(split_rows_of)
loss_of = eqx.filter_jit(lambda ensemble, task, batch: ensemble.loss(task, batch))


def never(observation, action, following):
    return jnp.zeros(observation.shape[:-1], bool)


def free(observation, action, following):
    return jnp.zeros(observation.shape[:-1])


@pytest.fixture(scope="module")
def task(toy):
    """One dimension, reward and end known."""
    return toy(1, reward=free, terminates=never)


@partial(jax.jit, static_argnums=0)
def fit_once(task, settings, *given):
    """One executable for all fits: numbers of the settings are values."""
    return fit(*given[:-1], task=task, settings=settings, key=given[-1])


def replay_of(observation, action, following, capacity=CAPACITY, steps=1):
    """Of arrays [N, d], [N, m], [N, d], in episodes of so many steps."""
    nothing, episodes = np.zeros((len(observation), 1)), np.arange(len(observation))[:, None] // steps
    rows = np.concatenate([observation, action, nothing, following, nothing, episodes], axis=-1)
    rows = np.pad(rows, ((0, capacity - len(rows)), (0, 0))).astype(np.float32)
    size = jnp.asarray(len(observation), jnp.int32)
    return Replay(jnp.asarray(rows), size, observation.shape[-1], action.shape[-1])


def some_replay(function, count=ROWS, seed=0, capacity=CAPACITY):
    """Of a task with one dimension: s in [-1, 1] and s' = s + function(s, a)."""
    rng = np.random.default_rng(seed)
    s, a = rng.uniform(-1, 1, size=(2, count, 1))
    return replay_of(s, a, s + function(s, a), capacity)


def batch_for(task, rng, *shape):
    d, m = task.observations, task.actions
    draw = lambda *tail: jnp.asarray(rng.normal(size=(*shape, *tail)), jnp.float32)  # noqa: E731
    return Transition(draw(d), draw(m), draw(), draw(d), jnp.asarray(rng.integers(2, size=shape), jnp.float32))


def outputs_by_hand(ensemble, batch):
    """Of a linear ensemble on a batch that all members share, or on one of each, in float64."""
    weight, bias = (np.asarray(leaf[0], np.float64) for leaf in (ensemble.net.weights, ensemble.net.biases))
    seen = np.concatenate([np.asarray(ensemble.inputs(batch.observation)), batch.action], axis=-1)
    return seen, seen @ weight + bias[:, None]


def roles(split):
    return [set(np.asarray(order[:count]).tolist()) for order, count in zip(split[:3], split.counts, strict=True)]


# --- which rows serve for what


def lengths_of(*lengths, capacity=2048):
    """A replay of episodes of these lengths, in which nothing moves."""
    episodes = np.repeat(np.arange(len(lengths)), lengths)[:, None]
    rows = np.pad(
        np.concatenate([np.zeros((len(episodes), 5)), episodes], axis=-1), ((0, capacity - sum(lengths)), (0, 0))
    )
    return Replay(jnp.asarray(rows, jnp.float32), jnp.asarray(sum(lengths), jnp.int32), 1, 1)


def sides(replay, key=KEY):
    """0, 1 or 2 for training, held-out and test rows."""
    split = split_of(replay, SMALL, key)
    return sum(part * np.asarray(split.member_of(part)) for part in (1, 2))[: int(replay.size)]


def test_of_the_first_episodes_blocks_of_rows_and_later_whole_episodes_are_held_out_or_tested_on():
    found = sides(lengths_of(*[60] * 60, capacity=4096)).reshape(60, 60)
    first, later = found[:20], found[20:]
    assert (np.ptp(later, axis=1) == 0).all() and set(later[:, 0]) == {0, 1, 2}
    assert all(np.ptp(block) == 0 for episode in first for block in np.split(episode, 6))
    assert max(len(set(episode)) for episode in first) > 1


def test_held_out_and_tested_rows_are_spread_evenly_over_episodes_however_few_or_short():
    for lengths, most in (
        ((200,) * 5, 0.06),
        ((1000,), 0.05),
        ((60,) * 30, 0.06),
        ((10,) * 40, 0.06),
        ((200,) * 40, 0.06),
    ):
        parts = np.array(
            [
                np.bincount(sides(lengths_of(*lengths, capacity=8192), jax.random.key(seed)), minlength=3)
                for seed in range(20)
            ]
        )
        shares = parts / sum(lengths)
        np.testing.assert_allclose(shares.mean(axis=0), [0.85, 0.1, 0.05], atol=0.02)
        assert shares.std(axis=0).max() < most  # by draws of their own it would be up to .08


@pytest.mark.parametrize("lengths", [(1,), (9,), (9, 12), (3,) * 15, (24, 30, 11, 8)])
def test_however_short_the_episodes_there_are_rows_to_train_on(lengths):
    for seed in range(20):
        split = split_of(lengths_of(*lengths), SMALL, jax.random.key(seed))
        assert split.counts[0] >= min(sum(lengths), 5) and sum(split.counts) == sum(lengths)


@pytest.mark.parametrize("data", ["bootstrap", "disjoint"])
def test_a_rows_side_and_weights_depend_on_its_number_alone(data):
    chosen = EnsembleSettings(heads=3, held_out=0.3, test=0.2, data=data)
    small, middle, large = (
        split_of(lengths_of(*lengths, capacity=capacity), chosen, KEY)
        for lengths, capacity in (((60, 37), 128), ((60, 70), 256), ((60, 70, *[40] * 25), 2048))
    )
    for some, more, most in zip(roles(small), roles(middle), roles(large), strict=True):
        assert some == {row for row in more if row < 97}
        assert more == {row for row in most if row < 130}
    np.testing.assert_array_equal(small.weights[:97], large.weights[:97])


def test_training_held_out_and_test_rows_are_apart_and_are_all_rows():
    replay = some_replay(lambda s, a: s, 900, capacity=1024)
    split = split_of(replay, EnsembleSettings(heads=1, held_out=0.3, test=0.1), KEY)
    train, held_out, test = roles(split)
    assert len(train) + len(held_out) + len(test) == 900
    assert train | held_out | test == set(range(900))
    np.testing.assert_allclose(split.counts / 900, [0.6, 0.3, 0.1], atol=0.08)
    for part, role in enumerate((train, held_out, test)):
        assert set(np.asarray(split.spread(part, 1000)).tolist()) == role
        assert len(set(np.asarray(split.spread(part, 20)).tolist())) == 20


def test_bootstrap_weights_are_poisson_of_mean_one_and_the_references_are_one():
    split = split_of(some_replay(lambda s, a: s, 1, capacity=8192), EnsembleSettings(heads=2), KEY)
    weights = np.asarray(split.weights)
    np.testing.assert_array_equal(weights[:, 0], 1)
    np.testing.assert_allclose(weights[:, 1:].mean(0), 1, atol=0.05)
    np.testing.assert_allclose(weights[:, 1:].var(0), 1, atol=0.1)
    np.testing.assert_allclose(np.mean(weights[:, 1:] == 0, axis=0), np.exp(-1), atol=0.03)
    assert abs(np.corrcoef(weights[:, 1], weights[:, 2])[0, 1]) < 0.06


def test_all_heads_may_have_all_rows():
    chosen = EnsembleSettings(heads=2, data="all")
    np.testing.assert_array_equal(split_of(some_replay(lambda s, a: s, 1, capacity=64), chosen, KEY).weights, 1)


def test_disjoint_splits_give_every_row_to_one_head():
    chosen = EnsembleSettings(heads=4, data="disjoint")
    weights = np.asarray(split_of(some_replay(lambda s, a: s, 1, capacity=1024), chosen, KEY).weights)
    np.testing.assert_array_equal(np.sort(weights[:, 1:], axis=1), np.tile([0, 0, 0, 4.0], (1024, 1)))
    np.testing.assert_allclose(weights.mean(0), 1, atol=0.3)
    np.testing.assert_array_equal(weights[:, 0], 1)


# --- losses and their gradients


def test_the_loss_is_the_squared_error_of_z_scores(toy, linear_ensemble):
    rng = np.random.default_rng(0)
    task = toy(2, reward=free, terminates=never)
    targets = Normaliser(jnp.array([0.5, -1.0]), jnp.array([2.0, 0.5]))
    ensemble = linear_ensemble(
        task, rng, inputs=Normaliser(jnp.array([1.0, 0.0]), jnp.array([3.0, 1.0])), targets=targets
    )
    batch = batch_for(task, rng, 5)
    wanted = (np.asarray(batch.next - batch.observation) - [0.5, -1.0]) / [2.0, 0.5]
    by_hand = np.sum((wanted - outputs_by_hand(ensemble, batch)[1]) ** 2, axis=-1)
    np.testing.assert_allclose(loss_of(ensemble, task, batch), by_hand, rtol=1e-4)


@pytest.mark.parametrize("known", [True, False])
def test_the_unrolled_loss_is_the_mean_norm_of_errors_along_a_members_own_predictions(toy, linear_ensemble, known):
    rng = np.random.default_rng(1)
    task = toy(2, **({"reward": free, "terminates": never} if known else {}))
    size = 2 + (not known)
    targets = random_normaliser(rng, size)
    ensemble = linear_ensemble(task, rng, heads=1, inputs=random_normaliser(rng, 2), targets=targets)
    taken = batch_for(task, rng, 3, 2, 4)
    counts = np.array([[1, 1, 1, 1], [1, 1, 0, 1], [1, 0, 0, 1]], np.float32)[:, None].repeat(2, axis=1)
    seen = jax.jit(lambda e: unrolled_loss(e, task, taken, jnp.asarray(counts)))(ensemble)
    deviation, mean = (np.asarray(part, np.float64) for part in (targets.deviation, targets.mean))
    state, lost = np.asarray(taken.observation[0], np.float64), np.zeros((3, 2, 4))
    for i in range(3):
        row = jax.tree.map(lambda leaf, i=i: np.asarray(leaf[i], np.float64), taken)
        said = outputs_by_hand(ensemble, row._replace(observation=state))[1]
        truth = row.next - row.observation
        truth = truth if known else np.concatenate([truth, row.reward[..., None]], axis=-1)
        lost[i] = np.linalg.norm((truth - mean) / deviation - said[..., :size], axis=-1)
        if not known:
            odds = said[..., -1]
            lost[i] += np.log1p(np.exp(odds)) - odds * row.terminated
        state = state + (said[..., :size] * deviation + mean)[..., :2]
    np.testing.assert_allclose(seen, np.sum(counts * lost, axis=0) / np.sum(counts, axis=0), rtol=1e-3)


def test_an_exact_member_has_a_gradient_by_the_norm(toy, linear_ensemble):
    task = toy(1, reward=free, terminates=never)
    ensemble = linear_ensemble(task, np.random.default_rng(0), heads=1)
    still = eqx.tree_at(lambda e: e.net, ensemble, jax.tree.map(jnp.zeros_like, ensemble.net))
    taken = jax.tree.map(jnp.zeros_like, batch_for(task, np.random.default_rng(0), 2, 2, 3))
    slopes = jax.jit(jax.grad(lambda net: jnp.sum(unrolled_loss(
        eqx.tree_at(lambda e: e.net, still, net), task, taken, jnp.ones((2, 2, 3))
    ))))(still.net)  # fmt: skip
    jax.tree.map(lambda leaf: np.testing.assert_array_equal(leaf, 0), slopes)


def test_the_loss_of_gaussian_heads_is_the_likelihood_by_variance_with_reward_and_end_where_learned(
    toy, linear_ensemble
):
    rng = np.random.default_rng(1)
    task = toy(2)
    ensemble = linear_ensemble(task, rng, gaussian=True)
    batch = batch_for(task, rng, 5)
    output = outputs_by_hand(ensemble, batch)[1]  # three means, three log-variances, the odds of an end
    softplus = lambda x: np.log1p(np.exp(x))  # noqa: E731
    log_variance = -12 + softplus(2 - softplus(2 - output[..., 3:6]) + 12)
    wanted = np.concatenate([batch.next - batch.observation, batch.reward[..., None]], axis=-1)
    likelihood = -0.5 * (wanted - output[..., :3]) ** 2 / np.exp(log_variance) - 0.5 * log_variance
    chance = 1 / (1 + np.exp(-output[..., 6]))
    entropy = -np.where(np.asarray(batch.terminated) > 0, np.log(chance), np.log(1 - chance))
    weighted = np.sum(np.exp(log_variance) * likelihood, axis=-1)
    np.testing.assert_allclose(loss_of(ensemble, task, batch), entropy - weighted, rtol=1e-4)


def test_means_of_gaussian_heads_follow_squared_errors_however_sure_and_variances_follow_them(toy, linear_ensemble):
    rng = np.random.default_rng(2)
    task = toy(2, reward=free, terminates=never)
    batch = batch_for(task, rng, 5)
    ensemble = linear_ensemble(task, rng, gaussian=True)
    sigmoid = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
    softplus = lambda x: np.log1p(np.exp(x))  # noqa: E731
    for certainty in (0.0, 5.0):
        biases = ensemble.net.biases[-1].at[..., 2:].add(-certainty)
        sure = eqx.tree_at(lambda e: e.net.biases[-1], ensemble, biases)
        slopes = jax.grad(lambda net, sure=sure: jnp.sum(eqx.tree_at(lambda e: e.net, sure, net).loss(task, batch)))
        mean, raw = np.split(outputs_by_hand(sure, batch)[1], 2, axis=-1)  # of log-variances before they are bounded
        error = np.asarray(batch.next - batch.observation) - mean
        inner = 2 - softplus(2 - raw) + 12
        variance = np.exp(-12 + softplus(inner))
        by_raw = 0.5 * (variance - error**2) * sigmoid(inner) * sigmoid(2 - raw)
        expected = np.concatenate([-error, by_raw], axis=-1).sum(axis=1)
        np.testing.assert_allclose(slopes(sure.net).biases[-1], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("gaussian", [False, True])
def test_the_gradient_is_that_of_finite_differences(toy, linear_ensemble, gaussian):
    rng = np.random.default_rng(2)
    task = toy(2)
    ensemble = linear_ensemble(task, rng, heads=1, gaussian=gaussian)
    batch, weights = batch_for(task, rng, 2, 4), jnp.asarray(rng.integers(3, size=(2, 4)), jnp.float32)
    loss = jax.jit(lambda e: weighted(e.loss(task, batch), weights))
    slopes = eqx.filter_jit(eqx.filter_grad(lambda e: weighted(e.loss(task, batch), weights)))
    gradient = slopes(ensemble).net.weights[0]
    for place in [(0, 0, 0), (0, 2, 1), (1, 1, 2), (1, 2, -1)]:
        nudged = [
            eqx.tree_at(lambda e: e.net.weights[0], ensemble, ensemble.net.weights[0].at[place].add(by))
            for by in (-0.01, 0.01)
        ]
        slope = (loss(nudged[1]) - loss(nudged[0])) / 0.02
        np.testing.assert_allclose(gradient[place], slope, rtol=0.02, atol=0.02)


def test_each_heads_gradient_is_that_of_its_own_weighted_least_squares(toy, linear_ensemble):
    rng = np.random.default_rng(3)
    task = toy(1, reward=free, terminates=never)
    ensemble = linear_ensemble(task, rng, heads=2)
    gradient = eqx.filter_jit(eqx.filter_grad(lambda e, b, w: weighted(e.loss(task, b), w)))
    batch, weights = batch_for(task, rng, 3, 3), rng.integers(1, 4, size=(3, 3)).astype(np.float32)  # B = members
    weights[1, 2] = 0

    def slopes(batch, weights):
        return np.asarray(gradient(ensemble, batch, jnp.asarray(weights)).net.weights[0])

    seen, said = outputs_by_hand(ensemble, batch)
    error = said - np.asarray(batch.next - batch.observation)
    by_hand = 2 / 3 * np.einsum("kb,kbi,kbo->kio", weights, seen, error)
    first = slopes(batch, weights)
    np.testing.assert_allclose(first, by_hand, rtol=1e-4, atol=1e-5)

    other = weights.copy()
    other[1, 0] += 1
    changed = np.any(slopes(batch, other) != first, axis=(1, 2))
    np.testing.assert_array_equal(changed, [False, True, False])  # its own weights move a head, and no other

    elsewhere = batch._replace(next=batch.next.at[1, 2].add(100.0))
    np.testing.assert_array_equal(slopes(elsewhere, weights), first)  # a row of weight zero has no say


# --- normalisers that change


def random_normaliser(rng, size):
    return Normaliser(
        jnp.asarray(rng.normal(size=size), jnp.float32), jnp.asarray(np.exp(rng.uniform(-0.4, 0.4, size)), jnp.float32)
    )


@eqx.filter_jit
def raw_predictions(ensemble, task, batch):
    said = ensemble.read(ensemble.net(ensemble.encode(task, batch.observation, batch.action)))
    deviation = 0.0 if said.deviation is None else said.deviation * ensemble.targets.deviation
    return ensemble.targets.undo(said.mean), deviation, said.end


renormalise = jax.jit(Ensemble.renormalised)


def renormalised(task, linear_ensemble, seed, *, gaussian, log_variance=0.0):
    """Raw predictions before and after."""
    rng = np.random.default_rng(seed)
    normalisers = [random_normaliser(rng, size) for size in (2, 3, 2, 3)]
    ensemble = linear_ensemble(task, rng, gaussian=gaussian, inputs=normalisers[0], targets=normalisers[1])
    if log_variance:
        calm = ensemble.net.weights[0].at[..., 3:6].multiply(0.1), ensemble.net.biases[0].at[..., 3:6].set(log_variance)
        ensemble = eqx.tree_at(lambda e: (e.net.weights[0], e.net.biases[0]), ensemble, calm)
    batch = batch_for(task, rng, 4)
    return [raw_predictions(e, task, batch) for e in (ensemble, renormalise(ensemble, *normalisers[2:]))]


@few
@given(seed=st.integers(0, 10**6), gaussian=st.booleans())
def test_renormalised_members_predict_what_they_did(toy, linear_ensemble, seed, gaussian):
    before, after = renormalised(toy(2), linear_ensemble, seed, gaussian=gaussian)
    np.testing.assert_allclose(after[0], before[0], rtol=1e-4, atol=1e-4 * np.max(np.abs(before[0])))
    np.testing.assert_allclose(after[2], before[2], rtol=1e-4, atol=1e-4 * np.max(np.abs(before[2])))


def test_renormalised_members_predict_the_noise_that_they_did_well_inside_its_bounds(toy, linear_ensemble):
    before, after = renormalised(toy(2), linear_ensemble, 0, gaussian=True, log_variance=-5.0)
    np.testing.assert_allclose(after[1], before[1], rtol=0.02)


# --- the fit


def linear(s, a):
    return 0.3 * a - 0.5 * s


def fitted(task, replay, seed=0, times=1, chosen=SMALL):
    """The ensemble before, split, ensemble after, and the metrics of each of several fits."""
    before = Ensemble.create(task, chosen, jax.random.key(seed))
    split = split_of(replay, chosen, KEY)
    after, state, metrics = before, chosen.optimiser.init(before.net), []
    for number in range(times):
        after, state, result = fit_once(task, chosen, after, state, replay, split, jax.random.key(number))
        metrics.append(result)
    return before, split, after, metrics


def held_out_loss(ensemble, task, replay, split):
    return np.asarray(jnp.mean(loss_of(ensemble, task, replay.transitions(split.spread(1, 200))), axis=-1))


def test_a_fit_learns_a_linear_system_and_the_next_one_goes_on_from_there(task):
    replay = some_replay(linear)
    before, split, after, metrics = fitted(task, replay, times=2)
    start = eqx.tree_at(lambda e: (e.inputs, e.targets), before, (after.inputs, after.targets))  # adopted
    ends, begins = (held_out_loss(e, task, replay, split) for e in (after, start))
    assert np.all(ends < 0.02 * begins)
    assert metrics[1]["model_held_out_loss"] <= metrics[0]["model_held_out_loss"]
    assert metrics[1]["model_held_out_loss_heads"] <= metrics[0]["model_held_out_loss_heads"]
    assert metrics[0]["model_rows"] == split.counts[0]
    s = a = jnp.array([[-0.5], [0.5]])
    mean = after.targets.undo(after.net(after.encode(task, s, a)))
    np.testing.assert_allclose(mean, np.broadcast_to([[[0.1], [-0.1]]], (3, 2, 1)), atol=0.05)


def test_normalisers_are_of_training_rows_alone(task):
    replay = some_replay(linear)
    _, split, after, _ = fitted(task, replay)
    train = np.asarray(split.train[: split.counts[0]])
    s, following = (np.asarray(replay.rows)[train, column].astype(np.float64) for column in (0, 3))
    for found, values in ((after.inputs, s), (after.targets, following - s)):
        np.testing.assert_allclose(found.mean[0], values.mean(), rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(found.deviation[0], values.std(), rtol=1e-4)
    others = jnp.asarray(np.setdiff1d(np.arange(ROWS), train))
    assert len(others)
    loud = eqx.tree_at(lambda r: r.rows, replay, replay.rows.at[others[:, None], jnp.array([0, 3])].multiply(1e3))
    _, _, same, _ = fitted(task, loud)
    jax.tree.map(np.testing.assert_array_equal, (same.inputs, same.targets), (after.inputs, after.targets))


def test_a_fit_draws_training_rows_alone(task):
    replay = some_replay(linear)
    before, split, after, _ = fitted(task, replay)
    # A row that is drawn is weighed: by one of these the fit would be lost.
    spoilt = split._replace(weights=jnp.where(split.member_of(0)[:, None], split.weights, jnp.nan))
    again, _, _ = fit_once(task, SMALL, before, SMALL.optimiser.init(before.net), replay, spoilt, jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, again, after)


@pytest.mark.parametrize("likelihood", ["deterministic", "gaussian"])
def test_a_fit_remembers_how_far_off_each_member_was_on_held_out_rows(task, likelihood):
    replay = some_replay(linear)
    _, split, after, _ = fitted(task, replay, chosen=EnsembleSettings(**{**vars(SMALL), "likelihood": likelihood}))
    rows = replay.transitions(split.spread(1, 512))
    said = after.read(after.net(after.encode(task, rows.observation, rows.action)))
    error = np.mean(np.sum((after.target(rows) - said.mean) ** 2, axis=-1), axis=-1)
    np.testing.assert_allclose(after.held_out, error, rtol=1e-4)
    assert len(set(error.tolist())) == after.members


@pytest.mark.slow
def test_gaussian_heads_that_were_sure_learn_what_they_did_not_expect(task):
    more = {"likelihood": "gaussian", "hidden": (32, 32), "steps": 2000, "learning_rate": 3e-3}
    chosen = EnsembleSettings(**{**vars(SMALL), **more})
    s, a = np.random.default_rng(0).uniform(-1, 1, size=(2, 2 * ROWS, 1))
    s[:ROWS] *= 0.2  # at first all is seen within a narrow range; beyond, the action works ever more the other way
    following = s + linear(s, a) - 2 * a * np.maximum(np.abs(s) - 0.2, 0)
    narrow, wide = (replay_of(s[:rows], a[:rows], following[:rows], 2 * CAPACITY) for rows in (ROWS, 2 * ROWS))
    ensemble = Ensemble.create(task, chosen, KEY)
    state, errors, deviations = chosen.optimiser.init(ensemble.net), [], []
    for replay in (narrow, wide):
        split = split_of(replay, chosen, KEY)
        ensemble, state, _ = fit_once(task, chosen, ensemble, state, replay, split, KEY)
        errors.append(ensemble.held_out)
        rows = replay.transitions(split.spread(1, 200))
        deviations.append(np.asarray(ensemble.read(ensemble.net(ensemble.encode(task, *rows[:2]))).deviation))
    assert np.all(errors[0] < 1e-3) and np.median(deviations[0]) < 0.05  # sure, and rightly so
    assert np.all(errors[1] < 0.1)


def test_a_fit_by_the_unrolled_loss_learns_a_linear_system(task):
    rng = np.random.default_rng(0)
    s, a, b = rng.uniform(-1, 1, size=(3, ROWS // 2, 1)).astype(np.float32)
    then = s + linear(s, a)
    order = lambda *parts: np.stack(parts, axis=1).reshape(-1, 1)  # noqa: E731, episodes of two steps
    replay = replay_of(order(s, then), order(a, b), order(then, then + linear(then, b)), steps=2)
    before, split, after, _ = fitted(task, replay, chosen=EnsembleSettings(**{**vars(SMALL), "unrolled": 2}))
    errors = [held_out_loss(each, task, replay, split) for each in (before, after)]
    assert np.all(errors[1] < 0.1 * errors[0])


def test_weights_decay_by_their_share_whatever_their_gradient():
    net, gradient = {"weights": jnp.array([3.0, -0.5])}, {"weights": jnp.array([0.2, 70.0])}

    def change(decay):
        optimiser = EnsembleSettings(learning_rate=0.01, weight_decay=decay).optimiser
        return optimiser.update(gradient, optimiser.init(net), net)[0]["weights"]

    np.testing.assert_allclose(change(0.4) - change(0.0), -0.01 * 0.4 * net["weights"], rtol=1e-4)


def test_a_fit_with_more_weight_decay_ends_with_smaller_weights(task):
    def sizes(decay):
        chosen = EnsembleSettings(**{**vars(SMALL), "weight_decay": decay})
        _, _, after, _ = fitted(task, some_replay(linear), chosen=chosen)
        return np.sqrt(sum(np.sum(np.square(layer), axis=(1, 2)) for layer in after.net.weights))  # of each member

    assert np.all(sizes(1.0) < 0.8 * sizes(0.0))


def test_a_first_fit_learns_as_well_in_any_units_of_the_state(task):
    losses = []
    for unit in (1.0, 0.01, 100.0):
        replay = some_replay(linear)
        scaled = replay.rows * jnp.array([unit, 1.0, 1.0, unit, 1.0, 1.0])  # s and s'
        _, _, _, [metrics] = fitted(task, eqx.tree_at(lambda r: r.rows, replay, scaled))
        losses.append((metrics["model_held_out_loss"], metrics["model_held_out_loss_heads"]))
    np.testing.assert_allclose(losses[1:], losses[:1] * 2, atol=0.02)


def test_what_begins_to_move_after_it_lay_still_is_no_explosion(task):
    def trembles(s, a):
        return 1e-6 * a  # the noise of a simulator

    still = np.full((ROWS, 1), 0.5)
    _, _, after, _ = fitted(task, replay_of(still, np.linspace(-1, 1, ROWS)[:, None], still))
    assert after.targets.still.all()
    replay = some_replay(trembles)
    again, _, metrics = fit_once(
        task, SMALL, after, SMALL.optimiser.init(after.net), replay, split_of(replay, SMALL, KEY), KEY
    )
    assert 4e-4 < float(again.targets.deviation[0]) < 8e-4  # a thousandth of how the states vary
    assert float(metrics["model_held_out_loss"]) < 0.01
    s = a = jnp.array([[-0.5], [0.5]])
    np.testing.assert_allclose(again.targets.undo(again.net(again.encode(task, s, a))), 0, atol=1e-3)


def test_a_fit_of_pure_noise_stops_early_and_no_member_gets_worse_on_held_out_rows(task):
    noise = np.random.default_rng(1).normal(size=(ROWS, 1))
    replay = some_replay(lambda s, a: noise)
    before, split, after, (first, second) = fitted(task, replay, times=2)
    start = eqx.tree_at(lambda e: (e.inputs, e.targets), before, (after.inputs, after.targets))  # adopted
    assert first["model_steps"] < SMALL.steps
    assert second["model_steps"] == SMALL.patience * SMALL.check  # nothing is left to learn
    ends, begins = (held_out_loss(e, task, replay, split) for e in (after, start))
    assert np.all(ends <= begins + 1e-5)
    assert ends[0] > 0.5  # and nothing was learned that is not there


def test_the_bootstrap_changes_the_fit_and_a_row_of_weight_zero_has_no_influence_on_that_head(task):
    replay = some_replay(linear)
    _, split, after, _ = fitted(task, replay)
    train = np.asarray(split.train[: split.counts[0]])
    ignored = train[np.asarray(split.weights)[train, 1] == 0]
    s, following = np.array(replay.rows[:, 0]), np.array(replay.rows[:, 3])
    change = following - s
    order = ignored[np.argsort(change[ignored])]
    change[order] = change[order[::-1]]  # their changes are exchanged, so that the normaliser stays what it was
    changed = eqx.tree_at(lambda r: r.rows, replay, replay.rows.at[:, 3].set(s + change))
    _, _, other, _ = fitted(task, changed)
    points = jnp.linspace(-1, 1, 9)[:, None]
    said = [np.asarray(e.net(e.encode(task, points, points)))[..., 0] for e in (after, other)]
    moved = np.max(np.abs(said[0] - said[1]), axis=-1)
    assert moved[1] < 1e-2
    assert moved[0] > 0.2
    assert moved[2] > 0.2


@pytest.mark.parametrize("data", ["bootstrap", "disjoint"])
def test_heads_differ_more_where_there_are_no_data(task, data):
    chosen = SMALL if data == "bootstrap" else EnsembleSettings(**{**vars(SMALL), "data": data})
    replay = some_replay(lambda s, a: np.sin(2 * s) + 0.1 * a)
    _, _, after, _ = fitted(task, replay, chosen=chosen)
    points = jnp.array([[0.0], [4.0]])
    said = np.asarray(after.net(after.encode(task, points, jnp.zeros((2, 1)))))[..., 0]
    spread = np.sqrt(np.mean((said[1:] - said[0]) ** 2, axis=0))
    assert spread[1] > 4 * spread[0]
    assert spread[0] > 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"heads": 0},
        {"hidden": (0,)},
        {"learning_rate": 0.0},
        {"held_out": 0.0},
        {"held_out": 0.6, "test": 0.4},
        {"likelihood": "poisson"},
        {"data": "some"},
        {"unrolled": -1},
        {"unrolled": 2, "likelihood": "gaussian"},
    ],
)
def test_settings_outside_their_range_are_the_users_mistake(wrong):
    with pytest.raises(UserError):
        EnsembleSettings(**wrong)
