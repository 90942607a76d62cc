"""What UCRL believes of rewards: nobody tells it their range."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

from cdpo.tabular.agents import UCRL, ucrl
from cdpo.tabular.agents.base import Belief, Plan
from cdpo.tabular.agents.ucrl import largest_mean_rewards, student_t_above
from cdpo.tabular.mdp import FiniteMDP
from cdpo.tabular.planning import Known, Model, evaluate, policy_iteration, uniform_policy
from cdpo.tabular.posterior import Posterior, Prior

S, A = 3, 2


def seen(transition, mean, deviation, visits, rng, prior=Prior()):
    """The posterior after so many visits [S, A], in NumPy."""
    count, average, scatter = np.zeros((3, *transition.shape), np.float32)
    for s, a in np.ndindex(*visits.shape):
        count[s, a] = rng.multinomial(visits[s, a], transition[s, a])
        for t in np.flatnonzero(count[s, a]):
            paid = rng.normal(mean[s, a, t], deviation[s, a, t], size=int(count[s, a, t]))
            average[s, a, t], scatter[s, a, t] = paid.mean(), paid.var() * len(paid)
    return Posterior(jnp.asarray(count), jnp.asarray(average), jnp.asarray(scatter), prior)


def plans(posteriors, mdps, agent):
    """The agent's plan for each posterior and MDP (leading axes), by one compiled program."""

    def plan(posterior, mdp):
        known, first = Known.of(mdp), uniform_policy(mdp.allowed)
        belief = Belief(posterior, known, jnp.array(0))
        return agent.improve(Plan(first, first, None), belief, jax.random.key(0))

    return jax.jit(jax.vmap(plan))(posteriors, mdps)


def stacked(trees):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


@pytest.mark.parametrize("freedom", [2.5, 6.0, 9.0, 30.0, 1e4])
@pytest.mark.parametrize("level", [1e-2, 1e-4, 1e-8])
def test_a_students_quantile_is_never_below_the_true_one(freedom, level):
    found = float(student_t_above(jnp.float32(level), jnp.float32(freedom)))
    true = stats.t.isf(level, freedom)
    assert true * (1 - 1e-5) < found
    if freedom >= 9:
        assert found < 1.04 * true


def test_few_rewards_are_judged_by_the_posterior_and_many_by_themselves():
    rng = np.random.default_rng(0)
    prior = Prior(mean=0.5, strength=2.0, shape=3.0, rate=1.5)
    counts = [0, 1, 9, 10, 300]
    paid = [rng.normal(2.0, 0.1, size=n) for n in counts]
    cell = lambda numbers: jnp.asarray(numbers, jnp.float32).reshape(1, 5, 1)  # noqa: E731
    average = cell([x.mean() if len(x) else 0 for x in paid])
    posterior = Posterior(
        cell(counts), average, cell([((x - x.mean()) ** 2).sum() if len(x) else 0 for x in paid]), prior
    )
    found = np.asarray(largest_mean_rewards(posterior, 0.05)).ravel()
    for n, x, high in zip(counts, paid, found, strict=True):
        level = 0.05 / 5 / (n + 1) / (n + 2)
        if n >= 10:
            expected = stats.t.isf(level, n - 1, loc=x.mean(), scale=x.std(ddof=1) / np.sqrt(n))
        else:
            mean, total = x.mean() if n else 0.0, 2 + n
            rate = 1.5 + ((x - mean) ** 2).sum() / 2 + 2 * n * (mean - 0.5) ** 2 / (2 * total)
            shape = 3 + n / 2
            scale = np.sqrt(rate / (shape * total))
            expected = stats.t.isf(level, 2 * shape, loc=(2 * 0.5 + n * mean) / total, scale=scale)
        assert expected - 1e-4 <= high <= expected + 0.04 * abs(expected)


TIMES = np.unique(np.geomspace(1, 2000, 60).astype(int))


def test_the_means_of_two_noisy_arms_are_in_the_set_at_all_times_as_often_as_promised():
    """Means that differ by a twentieth of the noise: the range of means says nothing of the noise."""
    mdp = FiniteMDP(np.ones((1, 2, 1)), np.array([[0.0, 0.05]]), 1.0)
    paid = np.random.default_rng(0).normal([0.0, 0.05], 1.0, size=(300, TIMES[-1], 2))
    average = (paid.cumsum(1) / np.arange(1, TIMES[-1] + 1)[:, None])[:, TIMES - 1]
    scatter = (paid**2).cumsum(1)[:, TIMES - 1] - TIMES[:, None] * average**2
    count = np.broadcast_to(TIMES[:, None], average.shape)
    tables = [jnp.asarray(x.reshape(-1, 1, 2, 1), jnp.float32) for x in (count, average, scatter)]
    worlds = jax.tree.map(lambda x: jnp.broadcast_to(x, (len(tables[0]), *x.shape)), mdp)
    found = plans(Posterior(*tables, Prior()), worlds, UCRL(confidence=0.05)).model.reward
    high = np.asarray(found).reshape(300, len(TIMES), 2)
    outside = (high < [0.0, 0.05]).any(axis=(1, 2))
    assert outside.mean() <= 0.05
    # And the sets are of use: in the end they are within a few standard errors of the truth.
    assert (high[:, -1] - [0.0, 0.05]).max() < 10 / np.sqrt(2000)


@pytest.fixture(scope="module")
def explored(random_mdp):
    """Random MDPs with what a hundred agents may have seen of them, and UCRL's plans for it."""
    rng = np.random.default_rng(1)
    mdps, posteriors = [], []
    for _ in range(100):
        mdp = random_mdp(rng, S, A, masked=True)
        tables = (np.float64(x) for x in (mdp.transition, mdp.reward_mean, mdp.reward_sd))
        transition, mean, deviation = tables
        transition /= transition.sum(-1, keepdims=True)
        visits = np.int64(10 ** rng.uniform(0, 3.5, size=(S, A))) * np.asarray(mdp.allowed)
        posteriors.append(seen(transition, mean, deviation, visits, rng))
        mdps.append(mdp)
    return stacked(mdps), stacked(posteriors), plans(stacked(posteriors), stacked(mdps), UCRL())


def test_optimism_holds_as_often_as_promised(explored):
    mdps, _, found = explored

    def values(mdp, plan):
        known, truth = Known.of(mdp), Model.true(mdp)
        best, _ = policy_iteration(truth, known, uniform_policy(mdp.allowed))
        return evaluate(truth, best, mdp.discount), evaluate(plan.model, plan.policy, mdp.discount)

    true, believed = (np.asarray(value) for value in jax.jit(jax.vmap(values))(mdps, found))
    assert ((believed >= true - 1e-3).all(axis=1)).mean() >= 0.95


def test_the_most_that_an_action_may_pay_is_in_the_best_of_the_rows(explored):
    """The linear program over rows of the width, paid by the largest means."""
    _, posteriors, found = explored
    for place in range(3):
        posterior = jax.tree.map(lambda x, place=place: x[place], posteriors)
        pays = np.float64(largest_mean_rewards(posterior, 0.025))
        count = np.float64(posterior.count)
        visits = count.sum(-1)
        for s, a in np.ndindex(S, A):
            n = max(1, visits[s, a])
            row = count[s, a] / n if visits[s, a] else np.full(S, 1 / S)
            width = np.sqrt(14 * S * np.log(2 * A * visits.sum() / 0.05) / n)
            expected = most_favourable(row, width, pays[s, a])
            assert float(found.model.reward[place, s, a]) == pytest.approx(expected, rel=1e-3, abs=1e-3)


def most_favourable(row, distance, value):
    """max p . value over the simplex with |p - row|_1 <= distance."""
    identity = np.eye(S)
    answer = optimize.linprog(
        np.concatenate([-value, np.zeros(S)]),
        A_ub=np.block([[identity, -identity], [-identity, -identity], [np.zeros((1, S)), np.ones((1, S))]]),
        b_ub=np.concatenate([row, -row, [distance]]),
        A_eq=np.concatenate([np.ones(S), np.zeros(S)])[None],
        b_eq=[1],
    )
    assert answer.status == 0
    return -answer.fun


def test_where_nothing_was_seen_the_prior_says_what_may_be_paid():
    prior = Prior(mean=-2.0)
    mdp = FiniteMDP(np.full((S, A, S), 1 / S), 5.0)
    empty = Posterior.initial(S, A, prior)
    found = plans(*(jax.tree.map(lambda x: x[None], tree) for tree in (empty, mdp)), UCRL(confidence=0.05))
    # Half of the confidence is that of rewards; 18 cells share it, and no reward has half of a cell's share.
    expected = stats.t.isf(
        0.025 / 18 / 2, 2 * prior.shape, loc=-2.0, scale=np.sqrt(prior.rate / prior.shape / prior.strength)
    )
    np.testing.assert_allclose(found.model.reward, expected, rtol=0.1)


@pytest.mark.parametrize("pays", [0.7, -0.7])
def test_extended_value_iteration_begins_above_every_possible_value(pays, monkeypatch):
    """Stopped after any number of sweeps, the values that the plan is made on are no less than what can be had."""
    transition = np.zeros((S, A, S))
    transition[:, 0], transition[:, 1] = np.eye(S), np.roll(np.eye(S), 1, axis=1)
    mdp = FiniteMDP(transition, np.array([[pays, 0.0], [0.0, 0.0], [0.1, -1.0]]), discount=0.9)
    known, reward = Known.of(mdp), mdp.reward
    best, _ = policy_iteration(Model.true(mdp), known, uniform_policy(mdp.allowed))
    optimum = np.asarray(evaluate(Model.true(mdp), best, mdp.discount))
    seen = []
    monkeypatch.setattr(ucrl, "best_action", lambda values, allowed: seen.append(values) or jnp.argmax(values, axis=-1))
    for sweeps in (0, 1, 5):
        seen.clear()
        ucrl.extended_value_iteration(mdp.transition, reward, jnp.zeros((S, A)), known, best, sweeps)
        assert (np.max(seen[-1], axis=-1) >= optimum - 1e-4).all()
