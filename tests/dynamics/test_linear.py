"""Linear members against NumPy's regression, the closed form of the posterior, and a system that is known."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import invgamma, kstest
from scipy.stats import t as student

from cdpo.dynamics.ensemble import Ensemble, EnsembleSettings, bounded, split_rows_of, unbounded
from cdpo.dynamics.linear import PRIOR, RATE, SHAPE, Posterior, fit_linear
from cdpo.dynamics.models import Belief, reference_model, sampled_models
from cdpo.dynamics.replay import Replay
from cdpo.errors import UserError
from cdpo.tasks import TASKS
from cdpo.tasks.lqr import BOUND, SYSTEM

TASK = TASKS["lqr"]
KEY = jax.random.key(7)
CAPACITY, HEADS = 4096, 64  # the same for all fits, which then are one program
few = settings(derandomize=True, max_examples=10, deadline=None)
posterior_of = jax.jit(Posterior.of)
step = eqx.filter_jit(lambda models, observation, action, key: models.step(observation, action, key))


def lived(count, seed=0, capacity=CAPACITY, follows=None):
    """Rows of lqr; actions are random in [-1, 1], or follow the states up to little noise."""
    rng = np.random.default_rng(seed)
    s = rng.uniform(-2, 2, (count, 3))
    a = rng.uniform(-1, 1, (count, 2)) if follows is None else -s @ follows.T + 1e-3 * rng.normal(size=(count, 2))
    following = s @ SYSTEM.A.T + BOUND * a @ SYSTEM.B.T + SYSTEM.noise * rng.normal(size=s.shape)
    nothing = np.zeros((count, 1))
    episodes = np.arange(count)[:, None]  # of one step each
    rows = np.concatenate([s, a, nothing, following, nothing, episodes], axis=-1)
    rows = np.pad(rows, ((0, capacity - count), (0, 0)))
    return Replay(jnp.asarray(rows, jnp.float32), jnp.asarray(count, jnp.int32), 3, 2)


@eqx.filter_jit
def _fitted(before, replay, chosen, key):
    split = split_rows_of(replay, chosen, KEY)
    return *fit_linear(before, replay, split, task=TASK, key=key), split


def fitted(replay, likelihood="deterministic", key=KEY, test=0.05, before=None):
    """Ensemble, calibration, metrics and split."""
    chosen = EnsembleSettings(kind="linear", heads=HEADS, likelihood=likelihood, test=test)
    before = Ensemble.create(TASK, chosen, jax.random.key(0)) if before is None else before
    return _fitted(before, replay, chosen, key)


def believed(replay, **told):
    ensemble, calibration, *_ = fitted(replay, **told)
    wide = jnp.broadcast_to(jnp.array([[-1e3], [1e3]]), (2, 3))
    return Belief(ensemble, calibration, wide, jnp.zeros(2), jnp.array(False), TASK)


def by_hand(ensemble, replay, rows):
    """Inputs [n, 6] and targets [n, 3] of some rows, in float64."""
    some = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), replay.transitions(rows))
    inputs, targets = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), (ensemble.inputs, ensemble.targets))
    seen = np.concatenate([inputs(some.observation), some.action, np.ones((len(rows), 1))], axis=-1)
    return seen, targets(some.next - some.observation)


def weights_of(ensemble):
    """[members, 6, 3], the intercept last."""
    net = ensemble.net
    return np.concatenate([net.weights[0], net.biases[0][:, None]], axis=1)[..., :3]


def ridge(seen, wanted):
    return np.linalg.solve(seen.T @ seen + PRIOR * np.eye(seen.shape[1]), seen.T @ wanted)


# --- the posterior


def test_the_reference_is_the_ridge_regression_on_all_rows_but_the_tests():
    replay = lived(200)
    ensemble, _, metrics, split = fitted(replay)
    rows = np.setdiff1d(np.arange(200), split.test[: split.counts[2]])
    assert len(rows) < 200
    assert metrics["model_rows"] == len(rows)
    np.testing.assert_allclose(weights_of(ensemble)[0], ridge(*by_hand(ensemble, replay, rows)), atol=1e-5)


def test_actions_that_follow_the_states_spoil_no_digit_that_matters():
    gain = np.array([[0.4, 0.2, 0.1], [0.1, 0.3, 0.0]])
    replay = lived(2000, follows=gain)
    ensemble, *_ = fitted(replay, test=0.0)
    seen, wanted = by_hand(ensemble, replay, np.arange(2000))
    exact = ridge(seen, wanted)
    np.testing.assert_allclose(seen @ weights_of(ensemble)[0], seen @ exact, atol=1e-4)
    np.testing.assert_allclose(weights_of(ensemble)[0], exact, rtol=1e-2, atol=1e-2)


@few
@given(seed=st.integers(0, 1000), count=st.integers(1, 40))
def test_the_noise_is_that_of_the_closed_form(seed, count):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(40, 4)), rng.normal(size=(40, 2))
    counted = np.arange(40) < count
    found = posterior_of(jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32), jnp.asarray(counted))
    x, y = x[:count], y[:count]
    precision = x.T @ x + PRIOR * np.eye(4)
    mean = ridge(x, y)
    rate = RATE + (np.sum(y**2, axis=0) - np.einsum("io,ij,jo->o", mean, precision, mean)) / 2
    np.testing.assert_allclose(found.mean, mean, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(found.factor.T @ found.factor, precision, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found.rate, rate, rtol=2e-3, atol=1e-4)
    assert found.shape == SHAPE + count / 2


def test_draws_have_the_covariance_and_the_tails_of_the_closed_form():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, 3)) @ np.array([[1, 0.8, 0], [0, 0.5, 0], [0, 0, 2]])
    y = x @ rng.normal(size=(3, 2)) + 0.3 * rng.normal(size=(12, 2))
    posterior = posterior_of(jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32), jnp.ones(12, bool))
    weights, variances = map(np.asarray, posterior.draw(KEY, 40_000))
    shape, rate = float(posterior.shape), np.asarray(posterior.rate)
    inverse = np.linalg.inv(x.T @ x + PRIOR * np.eye(3))
    for o in range(2):
        covariance = rate[o] / (shape - 1) * inverse
        scale = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
        np.testing.assert_allclose(np.cov(weights[:, :, o].T) / scale, covariance / scale, atol=0.04)
        assert kstest(variances[:, o], invgamma(shape, scale=rate[o]).cdf).pvalue > 0.01
        for i in range(3):
            known = student(2 * shape, posterior.mean[i, o], np.sqrt(rate[o] / shape * inverse[i, i]))
            assert kstest(weights[:, i, o], known.cdf).pvalue > 0.01
    apart = (weights - np.asarray(posterior.mean)).reshape(-1, 6)
    across = np.corrcoef(apart.T)[np.ix_([0, 2, 4], [1, 3, 5])]  # of the weights of one target with the other's
    np.testing.assert_allclose(across, 0, atol=0.03)


def test_the_posterior_contracts_as_data_grow():
    counts, spreads = (100, 400, 1600), []
    for count in counts:
        weights = weights_of(fitted(lived(count))[0])
        spreads.append(np.sqrt(np.mean((weights[1:] - weights[0]) ** 2)))
    np.testing.assert_allclose(spreads * np.sqrt(counts), spreads[0] * 10, rtol=0.2)  # as one over the root of the rows


def test_with_many_data_the_reference_knows_the_system():
    belief = believed(lived(4000))
    models = reference_model(belief, 1)
    along = np.concatenate([np.zeros((1, 5)), np.eye(5)]).astype(np.float32)
    following = np.asarray(step(models, along[None, :, :3], along[None, :, 3:], KEY).next[0])
    slopes = (following[1:] - following[0]).T
    np.testing.assert_allclose(slopes, np.concatenate([SYSTEM.A, BOUND * SYSTEM.B], axis=1), atol=4e-3)
    np.testing.assert_allclose(following[0], 0, atol=4e-3)


# --- models to plan on


def test_a_sampled_model_is_a_draw_from_the_posterior_as_it_is():
    belief = believed(lived(60))
    np.testing.assert_array_equal(belief.calibration.scale, 1)
    models = sampled_models(belief, 3, "subset", KEY)
    np.testing.assert_array_equal(models.gain, 1)
    rng = np.random.default_rng(0)
    s, a = (rng.uniform(-1, 1, (4, size)).astype(np.float32) for size in (3, 2))
    following = step(models, np.stack([s] * 3), np.stack([a] * 3), KEY).next
    ensemble = belief.ensemble
    seen = np.concatenate([ensemble.inputs(s), a, np.ones((4, 1), np.float32)], axis=-1)
    heads = weights_of(ensemble)[np.asarray(models.heads)[:, 0]]
    np.testing.assert_allclose(following, s + np.asarray(ensemble.targets.undo(seen @ heads)), atol=1e-5)


@pytest.mark.parametrize("likelihood", ["deterministic", "gaussian"])
def test_noise_is_imagined_by_gaussian_members_only_and_known_to_both(likelihood):
    belief = believed(lived(4000), likelihood=likelihood)
    s, a = np.full((4000, 3), 0.5, np.float32), np.zeros((4000, 2), np.float32)
    mean, width = belief.predict(jnp.asarray(s[:1]), jnp.asarray(a[:1]))
    np.testing.assert_allclose(width[0], SYSTEM.noise, rtol=0.05)
    np.testing.assert_allclose(mean[0], SYSTEM.A @ s[0], atol=5e-3)
    following = np.asarray(step(sampled_models(belief, 1, "subset", KEY), s[None], a[None], KEY).next[0])
    np.testing.assert_allclose(following.std(axis=0), SYSTEM.noise if likelihood == "gaussian" else 0, atol=3e-3)


def test_what_members_say_of_noise_is_what_they_mean():
    wanted = jnp.linspace(-11.9, 1.9, 50)
    np.testing.assert_allclose(bounded(unbounded(wanted)), wanted, atol=1e-3)
    assert np.all(np.isfinite(unbounded(jnp.array([-100.0, -12.0, 2.0, 100.0]))))


# --- nothing but the rows and the key


def test_a_fit_depends_on_rows_and_key_alone():
    replay = lived(60)
    first, again = fitted(replay)[0], fitted(replay)[0]
    warm = fitted(replay, before=fitted(lived(40, seed=1))[0])[0]
    for other in (again, warm):
        np.testing.assert_array_equal(weights_of(first), weights_of(other))
    assert (first.fits, warm.fits) == (1, 2)
    anew = weights_of(fitted(replay, key=jax.random.key(8))[0])
    np.testing.assert_array_equal(weights_of(first)[0], anew[0])
    assert np.all(np.any(weights_of(first)[1:] != anew[1:], axis=(1, 2)))
    tighter = weights_of(fitted(lived(60, capacity=64))[0])
    np.testing.assert_allclose(weights_of(first), tighter, atol=1e-5)


def test_rows_of_the_test_have_no_say_and_held_out_rows_have():
    replay = lived(100)
    ensemble, *_, split = fitted(replay)

    def moved(part):
        """By another order of the next states of a part, which the normalisers do not feel."""
        rows = np.asarray((split.train, split.held_out, split.test)[part][: split.counts[part]])
        assert len(rows) > 1
        changes = replay.rows[:, 6:9] - replay.rows[:, :3]
        shuffled = replay.rows[rows, :3] + changes[np.roll(rows, 1)]
        other = eqx.tree_at(lambda r: r.rows, replay, replay.rows.at[rows, 6:9].set(shuffled))
        return np.abs(weights_of(fitted(other)[0])[0] - weights_of(ensemble)[0]).max()

    assert moved(2) < 1e-5 < 1e-3 < moved(1)


def test_normalisers_are_of_all_rows_but_the_tests():
    replay = lived(100)
    ensemble, *_, split = fitted(replay)
    told = np.asarray(replay.rows, np.float64)[np.setdiff1d(np.arange(100), split.test[: split.counts[2]])]
    changes = told[:, 6:9] - told[:, :3]
    np.testing.assert_allclose(ensemble.targets.deviation, changes.std(axis=0), rtol=1e-4)
    np.testing.assert_allclose(ensemble.targets.mean, changes.mean(axis=0), atol=1e-5)
    assert len(told) < 100


@pytest.mark.parametrize(("known", "word"), [({}, "reward"), ({"reward": TASK.reward}, "end")])
def test_what_linear_models_cannot_learn_is_told_in_a_line(toy, known, word):
    with pytest.raises(UserError, match=f"cannot learn the {word} of toy"):
        Ensemble.create(toy(**known), EnsembleSettings(kind="linear"), KEY)
