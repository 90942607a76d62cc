import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

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
covered = jax.jit(coverage)


def synthetic(seed, ignorance, noise, *, varying=1.0, spread=1.0, predicted=None):
    """Errors of which the spread explains a part and noise the rest, in two dimensions."""
    rng = np.random.default_rng(seed)
    known = spread * np.exp(varying * rng.normal(size=(N, 2)))
    heard = np.ones((N, 2)) if predicted is None else np.exp(rng.normal(size=(N, 2)))
    error = ignorance * known * rng.normal(size=(N, 2)) + noise * heard * rng.normal(size=(N, 2))
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


def test_few_rows_leave_the_scale_near_one():
    held = synthetic(0, 4.0, 0.0)
    scales = [np.asarray(fitted(held, jnp.asarray(count)).scale) for count in (0.0, 10.0, 1e9)]
    np.testing.assert_array_equal(scales[0], 1)
    np.testing.assert_allclose(scales[1], np.sqrt(scales[2]), rtol=1e-4)


def test_errors_of_zero_give_a_finite_calibration():
    held = Residuals(jnp.zeros((N, 2)), jnp.ones((N, 2)), None)
    assert all(np.all(np.isfinite(part)) for part in fitted(held, MANY))


def test_coverage_counts_what_lies_inside_before_and_after_calibration():
    some = synthetic(0, 3.0, 1.0)
    calibration = Calibration(jnp.array([3.0, 2.0]), jnp.array([1.0, 0.5]))
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
