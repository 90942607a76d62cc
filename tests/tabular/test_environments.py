import itertools

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cdpo.errors import UserError
from cdpo.tabular import planning
from cdpo.tabular.environments import (
    ENVIRONMENTS,
    Bandit,
    Chain,
    DeepSea,
    Environment,
    Fixed,
    PriorMDP,
    WideNarrow,
    from_gymnasium,
)
from cdpo.tabular.mdp import FiniteMDP
from cdpo.tabular.planning import Known, Model, uniform_policy

KEY = jax.random.key(0)
average = jax.jit(planning.optimal_average_reward)
policy_iteration = jax.jit(planning.policy_iteration)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_environment_has_a_default_and_a_smallest_size(name):
    family = ENVIRONMENTS[name]
    assert isinstance(family(), Environment) and family().size >= family.smallest
    for size in (family.smallest, family().size):
        shapes = jax.eval_shape(family(size=size).make, KEY)  # also: it can be traced, for a seed's own MDP
        assert shapes.transition.shape == (shapes.states, shapes.actions, shapes.states)
        assert family(size=size).period >= 1
    with pytest.raises(UserError, match=f"{name} needs a size .* of at least {family.smallest}, not"):
        family(size=family.smallest - 1)


def test_chain_of_three_by_hand():
    mdp = Chain(3).make(KEY)
    delta = 0.1 * np.exp(-3 / 4)
    left, right = 0, 1
    transition = np.zeros((3, 2, 3))
    transition[0, left, 0] = transition[1, left, 0] = transition[2, left, 1] = 1
    transition[0, right] = [1 / 3, 2 / 3, 0]
    transition[1, right] = [1 / 3, 0, 2 / 3]
    transition[2, right] = [2 / 3, 1 / 3, 0]
    np.testing.assert_allclose(mdp.transition, transition, atol=1e-7)
    for cell in zip(*np.nonzero(transition), strict=True):
        mean = 0 if cell[1] == left else 1 if cell == (2, right, 0) else -delta
        assert float(mdp.reward_mean[cell]) == pytest.approx(mean, rel=1e-6)
        assert float(mdp.reward_sd[cell]) == pytest.approx(delta, rel=1e-6)
    np.testing.assert_array_equal(mdp.start, [1, 0, 0])
    assert float(mdp.discount) == np.float32(0.9) and not mdp.terminal.any() and mdp.allowed.all()
    assert Chain(3).period == 4


def test_chain_may_pay_for_the_attempt():
    mdp, usual = Chain(3, pays="attempt").make(KEY), Chain(3).make(KEY)
    np.testing.assert_array_equal(mdp.transition, usual.transition)
    np.testing.assert_allclose(mdp.reward_mean[2, 1, [0, 1]], [1, 1])
    np.testing.assert_array_equal(mdp.reward_mean[:2], usual.reward_mean[:2])
    assert float(average(Chain(10, pays="attempt").make(KEY))) == pytest.approx(0.0825, abs=5e-5)


def test_chain_of_two_mixes_success_and_failure():
    mdp = Chain(2).make(KEY)
    delta = 0.1 * np.exp(-2 / 4)
    np.testing.assert_allclose(mdp.transition[1, 1], [1, 0])
    assert float(mdp.reward_mean[1, 1, 0]) == pytest.approx(0.5 - 0.5 * delta, rel=1e-6)


@pytest.mark.parametrize(("size", "expected"), [(5, 0.1036), (8, 0.08351), (10, 0.07347), (15, 0.05586), (20, 0.04448)])
def test_chain_optimal_average_reward(size, expected):
    assert float(average(Chain(size).make(KEY))) == pytest.approx(expected, abs=6e-5 if size == 5 else 6e-6)


@pytest.mark.parametrize(("size", "expected"), [(10, (0.3201, 0.3557)), (15, (0.1804, 0.2005))])
def test_chain_optimal_values_at_the_start(size, expected):
    mdp = Chain(size).make(KEY)
    policy, q = policy_iteration(Model.true(mdp), Known.of(mdp), uniform_policy(mdp.allowed))
    np.testing.assert_array_equal(policy[:, 1], np.ones(size))
    np.testing.assert_allclose(q[0], expected, atol=6e-5)


def test_wide_narrow():
    mdp = WideNarrow(3, width=4).make(KEY)
    assert (mdp.states, mdp.actions) == (7, 4)
    transition = np.asarray(mdp.transition)
    for state, action in np.ndindex(7, 4):
        np.testing.assert_array_equal(transition[state, action], np.eye(7)[(state + 1) % 7])
    wide, narrow = [0, 2, 4], [1, 3, 5, 6]
    assert mdp.allowed[jnp.array(wide)].all()
    np.testing.assert_array_equal(np.asarray(mdp.allowed)[narrow], np.eye(4, dtype=bool)[[0] * 4])
    np.testing.assert_allclose(np.asarray(mdp.reward)[wide], [[0.5, 0, 0, 0]] * 3)
    np.testing.assert_array_equal(np.asarray(mdp.reward)[narrow], 0)
    np.testing.assert_array_equal(np.asarray(mdp.reward_sd)[wide], 1)
    assert float(average(mdp)) == pytest.approx(3 * 0.5 / 7, abs=1e-5)
    with pytest.raises(UserError, match="width of at least 1, not 0"):
        WideNarrow(3, width=0)


def test_prior_mdp_has_its_priors_moments():
    environment = PriorMDP(3, actions=2)
    mdps = jax.jit(jax.vmap(environment.make))(jax.random.split(KEY, 2000))
    transition = np.asarray(mdps.transition, np.float64).reshape(-1, 3)
    np.testing.assert_allclose(transition.sum(-1), 1, atol=1e-5)
    # Dirichlet(1, 1, 1): mean 1/3, variance 2/36.
    np.testing.assert_allclose(transition.mean(0), 1 / 3, atol=0.01)
    np.testing.assert_allclose(transition.var(0), 2 / 36, rtol=0.05)
    # tau ~ Gamma(4, 4): mean 1, variance 1/4; mu given tau ~ N(0, 1/tau), so that mu sqrt(tau) ~ N(0, 1).
    sd, mean = np.asarray(mdps.reward_sd, np.float64).ravel(), np.asarray(mdps.reward_mean, np.float64).ravel()
    tau = sd**-2
    assert tau.mean() == pytest.approx(1, abs=0.02) and tau.var() == pytest.approx(0.25, rel=0.05)
    assert (mean / sd).mean() == pytest.approx(0, abs=0.03) and (mean / sd).var() == pytest.approx(1, rel=0.03)
    with pytest.raises(UserError, match="at least 1 action, not 0"):
        PriorMDP(3, actions=0)


def dive(mdp, actions, discount):
    """The return of a sequence of actions in a deterministic MDP, from the start to the end."""
    state, total = 0, 0.0
    for step, action in enumerate(actions):
        assert not mdp.terminal[state]
        total += discount**step * float(mdp.reward[state, action])
        state = int(np.argmax(mdp.transition[state, action]))
    assert mdp.terminal[state]
    return total


def test_deep_sea_has_one_best_dive():
    size = 4
    mdp = DeepSea(size, shuffle=False).make(KEY)
    returns = {actions: dive(mdp, actions, 1.0) for actions in itertools.product((0, 1), repeat=size)}
    best = max(returns, key=returns.get)
    assert best == (1,) * size
    assert returns.pop(best) == pytest.approx(0.99, abs=1e-6)
    assert max(returns.values()) == pytest.approx(0, abs=1e-6)
    assert returns[(0,) * size] == 0


def test_deep_sea_optimal_value_with_its_own_discount():
    size = 3
    mdp = DeepSea(size).make(jax.random.key(5))
    assert float(mdp.discount) == np.float32(0.99)
    _, q = policy_iteration(Model.true(mdp), Known.of(mdp), uniform_policy(mdp.allowed))
    expected = sum(0.99**h * -0.01 / size for h in range(size)) + 0.99 ** (size - 1)
    assert float(q[0].max()) == pytest.approx(expected, abs=1e-5)
    assert float(average(mdp)) == pytest.approx(0.99 / size, abs=1e-5)


def test_deep_sea_shuffles_only_the_labels():
    plain = DeepSea(3, shuffle=False).make(KEY)
    flips = set()
    for seed in range(3):
        shuffled = DeepSea(3, shuffle=True).make(jax.random.key(seed))
        np.testing.assert_array_equal(shuffled.terminal, plain.terminal)
        np.testing.assert_array_equal(shuffled.start, plain.start)
        flipped = []
        for state in range(plain.states):
            for order in ([0, 1], [1, 0]):
                same = np.array_equal(shuffled.transition[state], plain.transition[state][jnp.array(order)])
                if same and np.array_equal(shuffled.reward[state], plain.reward[state][jnp.array(order)]):
                    flipped.append(order[0])
                    break
        assert len(flipped) == plain.states
        flips.add(tuple(flipped))
    assert len(flips) == 3


def test_bandit():
    mdps = jax.vmap(Bandit(4).make)(jax.random.split(KEY, 2000))
    mean = np.asarray(mdps.reward_mean)
    assert mean.shape == (2000, 1, 4, 1)
    assert mean.mean() == pytest.approx(0, abs=0.05) and mean.std() == pytest.approx(1, rel=0.05)
    np.testing.assert_array_equal(mdps.reward_sd, 1)
    assert Bandit(4).period == 1


def test_fixed_is_the_users_own_mdp():
    mdp = FiniteMDP(np.ones((1, 2, 1)), 0.0)
    assert isinstance(Fixed(mdp, 3), Environment) and Fixed(mdp, 3).make(KEY) is mdp


@pytest.mark.parametrize(
    ("name", "settings", "ends"),
    [
        ("FrozenLake-v1", {"is_slippery": True}, [5, 7, 11, 12, 15]),
        ("FrozenLake-v1", {"is_slippery": False}, [5, 7, 11, 12, 15]),
        ("CliffWalking-v1", {}, [47]),
        # Taxi and passenger both at the destination; tables also lead there from states that are never reached.
        ("Taxi-v4", {}, [0, 85, 410, 475]),
    ],
    ids=["slippery lake", "lake", "cliff", "taxi"],
)
def test_gymnasium_tables_hold_against_the_real_environment(name, settings, ends):
    mdp = from_gymnasium(name, discount=0.95, **settings)
    assert float(mdp.discount) == np.float32(0.95)
    np.testing.assert_array_equal(np.flatnonzero(mdp.terminal), ends)
    transition, mean, sd = (np.asarray(t) for t in (mdp.transition, mdp.reward_mean, mdp.reward_sd))
    start = np.asarray(mdp.start)
    rng = np.random.default_rng(0)
    env = gymnasium.make(name, **settings)
    visits, arrivals = np.zeros(transition.shape[:2]), np.zeros(transition.shape)
    state, _ = env.reset(seed=0)
    assert start[state] > 0
    for _ in range(2000):
        action = int(rng.integers(mdp.actions))
        successor, reward, terminated, truncated, _ = env.step(action)
        assert transition[state, action, successor] > 0
        assert terminated == bool(mdp.terminal[successor])
        if sd[state, action, successor] == 0:
            assert reward == pytest.approx(float(mean[state, action, successor]))
        visits[state, action] += 1
        arrivals[state, action, successor] += 1
        state = successor
        if terminated or truncated:
            state, _ = env.reset()
            assert start[state] > 0
    env.close()
    often = visits >= 50
    expected = visits[often][:, None] * transition[often]
    z = (arrivals[often] - expected) / np.sqrt(np.maximum(expected * (1 - transition[often]), 1e-9))
    assert np.abs(z[transition[often] > 0]).max(initial=0) < 5
    np.testing.assert_allclose(start, env.unwrapped.initial_state_distrib, rtol=1e-5)


def table_env(table):
    """An environment that is only its table."""
    env = gymnasium.make("FrozenLake-v1")
    env.unwrapped.P = table
    env.unwrapped.initial_state_distrib = np.eye(len(table))[0]
    return env


def test_outcomes_with_different_rewards_become_their_mixture():
    env = table_env({0: {0: [(0.25, 1, 4.0, True), (0.75, 1, 0.0, True)]}, 1: {0: [(1.0, 1, 0.0, True)]}})
    mdp = from_gymnasium(env)
    np.testing.assert_allclose(mdp.transition[0, 0], [0, 1])
    assert float(mdp.reward_mean[0, 0, 1]) == pytest.approx(1)
    assert float(mdp.reward_sd[0, 0, 1]) == pytest.approx(np.sqrt(3))
    env.close()


def test_a_state_that_ends_only_sometimes_has_no_finite_mdp():
    ends = {0: {0: [(0.5, 1, 0.0, True), (0.5, 1, 0.0, False)]}, 1: {0: [(1.0, 0, 0.0, False)]}}
    itself = {0: {0: [(1.0, 1, 0.0, False)]}, 1: {0: [(1.0, 1, 0.0, True)]}}
    for table in (ends, itself):
        env = table_env(table)
        with pytest.raises(UserError, match="enters state 1 both ending and going on"):
            from_gymnasium(env)
        env.close()


def test_an_environment_without_a_table_is_the_users_mistake():
    with pytest.raises(UserError, match="Blackjack-v1 has no transition table P"):
        from_gymnasium("Blackjack-v1")
