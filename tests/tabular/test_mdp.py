import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from cdpo.errors import UserError
from cdpo.tabular.mdp import FiniteMDP, draw, inverse_cdf_table, load_mdp

S, A = 3, 2


def tables(**changes):
    """A good MDP's tables, with changes."""
    rng = np.random.default_rng(0)
    good = {
        "transition": rng.dirichlet(np.ones(S), size=(S, A)),
        "reward_mean": rng.normal(size=(S, A, S)),
        "reward_sd": rng.uniform(size=(S, A, S)),
        "start": np.array([0.5, 0.5, 0.0]),
        "terminal": np.array([False, False, True]),
        "allowed": np.array([[True, True], [False, True], [True, False]]),
        "discount": 0.8,
    }
    return good | changes


def with_entry(name, index, value):
    table = np.array(tables()[name], float)
    table[index] = value
    return {name: table}


def test_good_tables_are_kept():
    given = tables()
    mdp = FiniteMDP(**given)
    for name, table in given.items():
        np.testing.assert_allclose(getattr(mdp, name), table, rtol=1e-6)
    assert (mdp.states, mdp.actions) == (S, A)
    np.testing.assert_allclose(mdp.reward, np.sum(given["transition"] * given["reward_mean"], -1), rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (with_entry("transition", (1, 0), [0.5, 0.4, 0.0]), r"transition\[1, 0\] sums to 0.9, not to 1"),
        (with_entry("transition", (2, 1), [1.5, -0.5, 0.0]), r"transition\[2, 1, 1\] is negative: -0.5"),
        (with_entry("transition", (0, 1, 2), np.nan), r"transition\[0, 1, 2\] is nan"),
        (with_entry("transition", (0, 1, 2), np.inf), r"transition\[0, 1, 2\] is inf"),
        (with_entry("reward_mean", (2, 0, 1), np.nan), r"reward_mean\[2, 0, 1\] is nan"),
        (with_entry("reward_mean", (2, 0, 1), -np.inf), r"reward_mean\[2, 0, 1\] is -inf"),
        (with_entry("reward_sd", (1, 1, 2), np.nan), r"reward_sd\[1, 1, 2\] is nan"),
        (with_entry("reward_sd", (1, 1, 2), -0.1), r"reward_sd\[1, 1, 2\] is negative"),
        (with_entry("start", 1, np.nan), r"start\[1\] is nan"),
        (with_entry("start", 1, 0.7), r"start sums to 1.2, not to 1"),
        (with_entry("start", slice(None), [1.5, -0.5, 0]), r"start\[1\] is negative"),
        ({"start": np.array([0.5, 0, 0.5])}, "start gives weight to a terminal state"),
        ({"start": 2}, "start gives weight to a terminal state"),
        ({"start": 3}, r"start is state 3, but the states are 0\.\.2"),
        ({"start": -1}, r"start is state -1, but the states are 0\.\.2"),
        ({"allowed": np.array([[True, True], [False, False], [True, True]])}, r"allowed\[1\] has no action"),
        ({"discount": 1.0}, r"discount must be in \[0, 1\), not 1"),
        ({"discount": -0.1}, r"discount must be in \[0, 1\), not -0.1"),
        ({"discount": np.nan}, r"discount must be in \[0, 1\), not nan"),
        ({"transition": np.ones((S, S))}, r"transition must have shape \[S, A, S\]"),
        ({"transition": np.ones((S, A, S + 1)) / (S + 1)}, r"transition must have shape \[S, A, S\]"),
        ({"transition": np.ones((S, 0, S))}, r"transition must have shape \[S, A, S\]"),
        ({"reward_mean": np.zeros((S, A + 1))}, r"reward_mean must fit .*not \[3, 3\]"),
        ({"reward_sd": np.zeros(S)}, r"reward_sd must fit .*not \[3\]"),
        ({"start": np.array([0.5, 0.5])}, r"start must have shape \[3\], not \[2\]"),
        ({"terminal": np.array([False, True])}, r"terminal must have shape \[3\], not \[2\]"),
        ({"allowed": np.ones(S, bool)}, r"allowed must have shape \[3, 2\], not \[3\]"),
    ],
)
def test_a_bad_table_is_named(changes, message):
    with pytest.raises(UserError, match=message):
        FiniteMDP(**tables(**changes))


def test_rewards_by_state_and_action_or_as_one_number():
    by_pair = np.arange(S * A, dtype=float).reshape(S, A)
    mdp = FiniteMDP(**tables(reward_mean=by_pair, reward_sd=0.25))
    np.testing.assert_array_equal(mdp.reward_mean, np.repeat(by_pair[:, :, None], S, axis=2))
    np.testing.assert_array_equal(mdp.reward_sd, np.full((S, A, S), 0.25))
    np.testing.assert_allclose(mdp.reward, by_pair, rtol=1e-6)


def test_defaults():
    mdp = FiniteMDP(np.ones((1, 2, 1)), 1.0)
    np.testing.assert_array_equal(mdp.start, [1])
    assert not mdp.terminal.any() and mdp.allowed.all() and not mdp.reward_sd.any()
    assert float(mdp.discount) == np.float32(0.9)


def test_tables_may_be_traced():
    made = jax.jit(lambda scale: FiniteMDP(jnp.ones((1, 2, 1)), scale * jnp.ones((1, 2))))(3.0)
    np.testing.assert_array_equal(made.reward_mean, np.full((1, 2, 1), 3.0))


def test_the_sampler_follows_the_tables():
    mdp = FiniteMDP(**tables())
    rng = np.random.default_rng(1)
    count = 20_000
    step = jax.jit(jax.vmap(mdp.sampler(), in_axes=(None, None, 0, 0)))
    for state, action in np.ndindex(S, A):
        uniform, normal = jnp.float32(rng.uniform(size=count)), jnp.float32(rng.normal(size=count))
        successor, reward = step(state, action, uniform, normal)
        seen = np.bincount(successor, minlength=S)
        expected = np.asarray(mdp.transition[state, action], np.float64)
        assert stats.chisquare(seen, count * expected / expected.sum()).pvalue > 1e-3
        cell = (state, action, np.asarray(successor))
        np.testing.assert_allclose(
            reward, np.asarray(mdp.reward_mean)[cell] + np.asarray(mdp.reward_sd)[cell] * normal, rtol=1e-5, atol=1e-6
        )


LAST = np.float32(1 - 2.0**-24)  # the largest uniform number there is


@pytest.mark.parametrize("states", [3, 10, 33, 100])
def test_an_outcome_of_probability_zero_is_never_drawn(states):
    """At the jumps of the cumulated sum, just beside them, and next to 0 and 1."""
    rng = np.random.default_rng(states)
    rows = rng.dirichlet(np.full(states, 0.3), size=2000)
    rows[rng.random(rows.shape) < 0.5] = 0
    rows[:, states // 2] += 0.01
    rows = (rows / rows.sum(-1, keepdims=True)).astype(np.float32)
    table = jax.jit(inverse_cdf_table)(rows)
    jumps = np.asarray(table)
    beside = [jumps, np.nextafter(jumps, np.float32(0)), np.nextafter(jumps, np.float32(2))]
    ends = [np.full((len(rows), 1), x, np.float32) for x in (2.0**-24, LAST)]
    uniform = np.clip(np.concatenate([*beside, *ends], axis=1), np.float32(2.0**-24), LAST)
    chosen = np.asarray(jax.jit(jax.vmap(jax.vmap(draw, in_axes=(None, 0))))(table, uniform))
    assert chosen.max() < states
    assert (np.take_along_axis(rows, chosen, axis=1) > 0).all()


def test_a_row_that_sums_to_less_than_one_in_float32_ends_at_its_last_outcome():
    row = jnp.array([0.0, 0.3, 0.3, 0.3, 0.0]) * jnp.float32(1.1111)
    assert int(draw(inverse_cdf_table(row), LAST)) == 3


def save(path, **arrays):
    np.savez(path, **arrays)
    return path


def test_a_file_gives_the_same_mdp(tmp_path):
    given = tables()
    loaded, made = load_mdp(save(tmp_path / "mdp.npz", **given)), FiniteMDP(**given)
    for x, y in zip(jax.tree.leaves(loaded), jax.tree.leaves(made), strict=True):
        np.testing.assert_array_equal(x, y)
    minimal = load_mdp(save(tmp_path / "minimal.npz", transition=given["transition"], reward_mean=0.5, start=1))
    np.testing.assert_array_equal(minimal.start, [0, 1, 0])


def test_a_file_with_missing_or_unknown_arrays(tmp_path):
    given = tables()
    del given["reward_mean"]
    with pytest.raises(UserError, match="lacks the array 'reward_mean'"):
        load_mdp(save(tmp_path / "missing.npz", **given))
    with pytest.raises(UserError, match="has an unknown array 'reward'"):
        load_mdp(save(tmp_path / "unknown.npz", **tables(), reward=1.0))


def test_a_file_with_bad_tables_names_the_entry(tmp_path):
    with pytest.raises(UserError, match=r"reward_mean\[0, 0, 0\] is nan"):
        load_mdp(save(tmp_path / "bad.npz", **tables(**with_entry("reward_mean", (0, 0, 0), np.nan))))


def test_pickled_objects_are_refused(tmp_path):
    touched = tmp_path / "touched"

    class Trap:
        def __reduce__(self):
            return (open, (str(touched), "w"))

    path = tmp_path / "pickled.npz"
    np.savez(path, transition=np.array([Trap()], dtype=object), reward_mean=0.0)
    with pytest.raises(UserError, match=r"not a readable \.npz file of arrays"):
        load_mdp(path)
    assert not touched.exists()


@pytest.mark.parametrize("kind", ["absent", "folder", "empty", "text", "npy", "truncated", "flipped"])
def test_what_is_no_npz_file_is_the_users_mistake(kind, tmp_path):
    path = tmp_path / "file.npz"
    if kind == "folder":
        path.mkdir()
    elif kind == "npy":
        with path.open("wb") as file:
            np.save(file, np.zeros(3))
    elif kind in ("truncated", "flipped"):
        whole = bytearray(save(path, **tables()).read_bytes())
        whole[200] ^= 0xFF
        path.write_bytes(whole if kind == "flipped" else whole[: len(whole) // 2])
    elif kind != "absent":
        path.write_text("hello" if kind == "text" else "")
    with pytest.raises(UserError, match=r"not a readable \.npz file of arrays"):
        load_mdp(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"start": 0.5},
        {"start": "first"},
        {"discount": [0.9, 0.9]},
        {"reward_mean": "high"},
        {"transition": [[[1], [1, 2]]]},
    ],
    ids=["fractional start", "text start", "two discounts", "text reward", "ragged rows"],
)
def test_what_is_no_number_is_the_users_mistake(changes):
    with pytest.raises(UserError, match=next(iter(changes))):
        FiniteMDP(**tables(**changes))
