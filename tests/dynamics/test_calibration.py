import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from cdpo.dynamics.calibration import (
    LEVELS,
    Calibration,
    Residuals,
    calibrate,
    coverage,
    coverage_metrics,
    residuals,
    width_of,
)
from cdpo.dynamics.replay import Transition

N = 4000
MANY = jnp.asarray(1e9)
fitted = jax.jit(calibrate)
reach_at = jax.jit(lambda calibration, levels: jax.vmap(calibration.reach_of)(levels))
covered = jax.jit(coverage)


KINDS = {
    "gaussian": lambda rng, shape: rng.normal(size=shape),
    "laplace": lambda rng, shape: rng.laplace(size=shape),
    "student": lambda rng, shape: rng.standard_t(3, size=shape),
}


def synthetic(seed, ignorance, noise, *, varying=1.0, spread=1.0, predicted=None, kind="gaussian"):
    """Errors of which the spread explains a part and noise the rest, in two dimensions."""
    rng = np.random.default_rng(seed)
    draw = KINDS[kind]
    known = spread * np.exp(varying * rng.normal(size=(N, 2)))
    heard = np.ones((N, 2)) if predicted is None else np.exp(rng.normal(size=(N, 2)))
    error = ignorance * known * draw(rng, (N, 2)) + noise * heard * draw(rng, (N, 2))
    arrays = (jnp.asarray(x, jnp.float32) for x in (error, known))
    return Residuals(*arrays, None if predicted is None else jnp.asarray(predicted * heard, jnp.float32))


def assert_covers(residuals, calibration):
    """At each level, within four standard errors and the error of a fitted quantile."""
    share = np.asarray(covered(residuals, calibration))
    levels = np.asarray(LEVELS)[:, None]
    np.testing.assert_allclose(share, np.broadcast_to(levels, share.shape), atol=6 * np.sqrt(0.25 / N))


@pytest.mark.parametrize("k", [0.5, 1.0, 4.0])
def test_errors_that_grow_with_the_spread_are_ignorance_of_the_right_scale(k):
    calibration = fitted(synthetic(0, k, 0.0), MANY)
    np.testing.assert_allclose(calibration.scale, k, rtol=0.08)
    assert np.all(calibration.noise < 0.1 * k)
    assert_covers(synthetic(1, k, 0.0), calibration)


@pytest.mark.parametrize("varying", [1.0, 0.1])
def test_noise_does_not_pass_for_ignorance(varying):
    held = synthetic(0, 0.0, 1.0, spread=0.01, varying=varying)
    calibration = fitted(held, MANY)
    np.testing.assert_allclose(calibration.noise, 1, rtol=0.1)
    assert np.all(calibration.scale * held.spread.mean(0) < 0.1)
    assert_covers(synthetic(1, 0.0, 1.0, spread=0.01, varying=varying), calibration)


def test_a_mixture_of_ignorance_and_noise_is_taken_apart():
    calibration = fitted(synthetic(0, 2.0, 0.5, spread=0.5), MANY)
    np.testing.assert_allclose(calibration.scale, 2, rtol=0.2)
    np.testing.assert_allclose(calibration.noise, 0.5, rtol=0.35)
    assert_covers(synthetic(1, 2.0, 0.5, spread=0.5), calibration)


def test_the_noise_that_gaussian_heads_predict_is_scaled():
    calibration = fitted(synthetic(0, 0.0, 1.0, spread=0.01, predicted=0.5), MANY)
    np.testing.assert_allclose(calibration.noise, 2, rtol=0.1)  # they predicted half of it
    assert_covers(synthetic(1, 0.0, 1.0, spread=0.01, predicted=0.5), calibration)


@pytest.mark.parametrize("what", [{"ignorance": 2.0, "noise": 0.0}, {"ignorance": 0.0, "noise": 1.0, "spread": 0.01}])
@pytest.mark.parametrize("kind", KINDS)
def test_intervals_of_every_level_hold_their_share_of_new_errors_whatever_the_noise(kind, what):
    calibration = fitted(synthetic(0, kind=kind, **what), MANY)
    new = synthetic(1, kind=kind, **what)
    assert_covers(new, calibration)
    # Between the levels of the map as well, and a little beyond them.
    reach = reach_at(calibration, jnp.array([0.15, 0.47, 0.93, 0.97]))
    apart = np.abs(new.error) / width_of(calibration, new.spread, None)
    shares = np.mean(apart <= np.asarray(reach)[:, None], axis=1)
    np.testing.assert_allclose(shares, np.tile([[0.15], [0.47], [0.93], [0.97]], 2), atol=0.045)


def test_the_width_is_that_of_the_interval_of_90_percent():
    for kind in KINDS:
        calibration = fitted(synthetic(0, 2.0, 0.0, kind=kind), MANY)
        np.testing.assert_allclose(calibration.reach[LEVELS.index(0.9)], norm.ppf(0.95), rtol=1e-4)


def test_a_higher_level_never_reaches_less_far():
    levels = jnp.linspace(0.001, 0.999, 500)
    for seed in range(5):
        held = jax.tree.map(lambda leaf: leaf[:12], synthetic(seed, 1.0, 1.0, kind="student"))  # ties and jumps
        reach = np.asarray(reach_at(fitted(held, jnp.asarray(12.0)), levels))
        assert (np.diff(reach, axis=0) >= 0).all() and (reach >= 0).all()


def test_without_rows_the_scale_is_one_and_the_reach_that_of_a_gaussian_variable():
    held = synthetic(0, 4.0, 0.0, kind="laplace")
    found = [fitted(held, jnp.asarray(count)) for count in (0.0, 1e9)]
    gaussian = norm.ppf((1 + np.array(LEVELS)) / 2)[:, None].repeat(2, axis=1)
    np.testing.assert_array_equal(found[0].scale, 1)
    np.testing.assert_allclose(found[0].reach, gaussian, rtol=1e-5)
    assert np.all(found[1].scale > 4) and np.all(found[1].reach[0] < 0.9 * gaussian[0])


def test_few_rows_that_are_alike_give_intervals_that_hold_their_share_on_average():
    def covers(key):
        """Of fits to what stands still for five rows, twelve times, on errors of any other rows."""
        first, second = jax.random.split(key)
        apart = jnp.repeat(jax.random.normal(first, (12, 1)), 5, axis=0)
        held = Residuals(2 * apart, jnp.ones((60, 1)), None)
        new = Residuals(2 * jax.random.normal(second, (400, 1)), jnp.ones((400, 1)), None)
        return coverage(new, calibrate(held, jnp.asarray(60.0)))[:, 0]

    found = np.mean(jax.jit(jax.vmap(covers))(jax.random.split(jax.random.key(0), 400)), axis=0)
    assert found[LEVELS.index(0.5)] == pytest.approx(0.5, abs=0.04)
    assert found[LEVELS.index(0.9)] == pytest.approx(0.9, abs=0.04)


def test_before_any_data_intervals_are_those_of_the_spread_as_it_is():
    some, levels = synthetic(0, 1.0, 0.0), jnp.array([0.01, 0.25, 0.5, 0.99, 0.9999])
    none = Calibration.none(2)
    np.testing.assert_allclose(reach_at(none, levels)[:, 0], norm.ppf((1 + levels) / 2), rtol=2e-3)
    np.testing.assert_array_equal(coverage(some, none), coverage(some, None))


def test_errors_of_zero_give_a_finite_calibration():
    held = Residuals(jnp.zeros((N, 2)), jnp.ones((N, 2)), None)
    assert all(np.all(np.isfinite(part)) for part in fitted(held, MANY))


def test_coverage_counts_what_lies_inside_before_and_after_calibration():
    some = synthetic(0, 3.0, 1.0)
    calibration = Calibration.gaussian(jnp.array([3.0, 2.0]), jnp.array([1.0, 0.5]))
    error, spread = np.abs(some.error), np.asarray(some.spread)
    widths = spread, np.sqrt((spread * [3, 2]) ** 2 + np.square([1, 0.5]))
    np.testing.assert_allclose(width_of(calibration, some.spread, None), widths[1], rtol=1e-4)
    metrics = coverage_metrics(some, calibration, "here")
    for number, level, quantile in [("50", 0.5, 0.67449), ("90", 0.9, 1.64485)]:
        raw, after = (np.mean(error <= quantile * width) for width in widths)
        assert metrics[f"coverage{number}_here_raw"] == pytest.approx(raw, abs=2e-3)
        assert metrics[f"coverage{number}_here"] == pytest.approx(after, abs=2e-3)
        assert metrics["coverage_map_here"][LEVELS.index(level)] == metrics[f"coverage{number}_here"]
        assert raw < after


@pytest.mark.parametrize("gaussian", [False, True])
def test_residuals_are_the_references_errors_and_the_heads_distance_to_it(toy, linear_ensemble, gaussian):
    rng = np.random.default_rng(0)
    task = toy(2)
    ensemble = linear_ensemble(task, rng, heads=3, gaussian=gaussian)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    batch = Transition(draw(5, 2), draw(5, 1), draw(5), draw(5, 2), jnp.zeros(5))
    said = eqx.filter_jit(ensemble.net)(jnp.concatenate([batch.observation, batch.action], axis=-1))
    mean = np.asarray(said[..., :3], np.float64)
    truth = np.concatenate([batch.next - batch.observation, batch.reward[:, None]], axis=-1)
    some = residuals(ensemble, task, batch)
    np.testing.assert_allclose(some.error, truth - mean[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(some.spread, np.sqrt(np.mean((mean[1:] - mean[0]) ** 2, axis=0)), rtol=1e-4)
    if gaussian:
        np.testing.assert_array_equal(some.noise, ensemble.read(said).deviation[0])
    else:
        assert some.noise is None
