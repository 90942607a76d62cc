import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cdpo.experiments.studies import MATCHED
from cdpo.tabular.agents import CDPO, PSRL, UCRL, Greedy
from cdpo.tabular.agents.base import Plan
from cdpo.tabular.environments import Chain, DeepSea, PriorMDP
from cdpo.tabular.ledger import ledger_entry
from cdpo.tabular.mdp import FiniteMDP
from cdpo.tabular.planning import Known, Model, policy_iteration
from cdpo.tabular.simulation import simulate

entry_of = jax.jit(ledger_entry)
optimal = jax.jit(policy_iteration)


def both(first, second):
    """Two models as a set."""
    return jax.tree.map(lambda *x: jnp.stack(x), first, second)


def float32(*tables):
    return [jnp.asarray(table, jnp.float32) for table in tables]


@pytest.fixture(scope="module", params=["continuing", "ending"])
def cases(request, random_mdp, random_policy):
    """Truth, a wrong model, pi_{t-1}, q_t and pi_t, all random; and the same in the ledger."""
    found = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        settings = {"ending": request.param == "ending", "masked": seed % 2 == 0}
        mdp = random_mdp(rng, 5, 3, **settings)
        other = random_mdp(rng, 5, 3, **settings)
        model = Model.build(other.transition, other.reward_mean, Known.of(mdp))
        allowed = np.asarray(mdp.allowed)
        before, q, pi = float32(*(random_policy(rng, allowed) for _ in range(3)))
        entry = entry_of(mdp, Plan(before, before, None), Plan(pi, q, model), model, both(model, Model.true(mdp)))
        found.append((mdp, model, before, q, pi, entry))
    return found


def test_terms_equal_an_independent_computation(cases, exact):
    for mdp, model, before, q, pi, entry in cases:
        truth, wrong = exact.of(mdp), exact(model, Known.of(mdp))
        terminal, allowed = np.asarray(mdp.terminal), np.asarray(mdp.allowed)
        assert entry.improvement == pytest.approx(truth.j(pi) - truth.j(before), abs=1e-4)
        assert entry.delta == pytest.approx(wrong.j(q) - wrong.j(before), abs=1e-4)
        assert entry.delta_q == pytest.approx(wrong.j(q) - wrong.j(before), abs=1e-4)
        lived = [truth.visitation(policy)[:, None] * np.float64(policy) for policy in (q, before)]
        assert entry.shift == pytest.approx(0.5 * np.abs(lived[0] - lived[1]).sum(), abs=1e-5)
        moved = 0.5 * np.abs(np.float64(pi) - np.float64(q)).sum(-1)
        assert entry.distance == pytest.approx(truth.visitation(q) @ moved, abs=1e-5)
        advantage = np.where(allowed & ~terminal[:, None], truth.q(pi) - truth.value(pi)[:, None], 0)
        assert entry.iota == pytest.approx(np.abs(advantage).max(), abs=1e-4)
        for policy, found in ((q, entry.error_q), (before, entry.error_pi)):
            value = np.where(terminal, 0, wrong.value(policy))
            off = wrong.transition - truth.transition
            # Mass that a row lacks has gone to terminal states, and counts there.
            distance = np.abs(off).sum(-1) + np.abs(off.sum(-1))
            loss = 0.9 * np.ptp(value) / 2 * distance + np.abs(wrong.reward - truth.reward)
            rho = truth.visitation(policy)[:, None] * np.float64(policy)
            assert found == pytest.approx(np.sum(rho * loss) / 0.1, rel=1e-4)


def test_what_the_conservative_update_gains_is_judged_by_models_that_it_has_not_seen(cases, exact):
    for mdp, model, _, q, pi, entry in cases:
        gained = [f.j(pi) - f.j(q) for f in (exact(model, Known.of(mdp)), exact.of(mdp))]
        assert entry.expected == pytest.approx(np.mean(gained), abs=1e-4)
        assert entry.expected_error == pytest.approx(np.std(gained, ddof=1) / np.sqrt(2), abs=1e-4)


def test_the_worst_update_is_that_to_the_worst_of_all_policies(cases, exact):
    for mdp, _, before, _, pi, entry in cases:
        truth, allowed = exact.of(mdp), np.asarray(mdp.allowed)
        corners = itertools.product(*(np.eye(3)[row] for row in allowed))
        worst = min(truth.j(np.array(corner)) for corner in corners)
        assert entry.worst == pytest.approx(worst - truth.j(before), abs=1e-4)
        assert truth.j(pi) - truth.j(before) >= entry.worst - 1e-4


def test_fresh_models_are_of_the_posterior_that_the_plan_was_made_on():
    """Before the first block nothing is known, and all policies are worth the same: the rest is noise."""
    entry = simulate(PriorMDP(4), CDPO(), seeds=64, steps=5, prior=MATCHED, ledger=True).ledger
    told = np.asarray(entry.expected_error[:, 0]) > 1e-6
    z = (entry.expected[:, 0] / np.maximum(entry.expected_error[:, 0], 1e-6))[told]
    assert told.sum() > 30
    assert np.sqrt(np.mean(z**2)) == pytest.approx(1, abs=0.3)


def test_error_bounds_what_the_model_gets_wrong(cases, exact):
    """|J(p) - J_f(p)| <= error(p) for each of the two policies, by which the bound is made of two halves."""
    for mdp, model, before, q, _, entry in cases:
        truth, wrong = exact.of(mdp), exact(model, Known.of(mdp))
        assert abs(truth.j(q) - wrong.j(q)) <= entry.error_q + 1e-4
        assert abs(truth.j(before) - wrong.j(before)) <= entry.error_pi + 1e-4


def test_trust_bounds_what_the_conservative_update_loses(cases, exact):
    for mdp, _, _, q, pi, entry in cases:
        truth = exact.of(mdp)
        assert truth.j(pi) - truth.j(q) >= -entry.trust - 1e-4


def test_improvement_is_never_below_the_bound(cases):
    for *_, entry in cases:
        assert entry.improvement >= entry.bound - 1e-4
        assert entry.bound == pytest.approx(float(entry.delta - entry.error_q - entry.error_pi - entry.trust))
        assert entry.trust == pytest.approx(float(2 * entry.distance * entry.iota / (1 - 0.9)), rel=1e-4)
        assert entry.theorem(0.2) == pytest.approx(
            float(entry.delta - (1 + entry.kappa) * entry.error_pi - 0.2 * entry.slope), rel=1e-4
        )


def assert_bound_holds(run):
    entry = run.ledger
    scale = 1 + np.abs(entry.bound)
    assert np.isfinite(entry.improvement).all()
    assert (entry.improvement >= entry.bound - 1e-4 * scale).all()
    assert (entry.error_q >= 0).all() and (entry.error_pi >= 0).all() and (entry.trust >= 0).all()


@pytest.mark.slow(besides="psrl")
@pytest.mark.parametrize("agent", [CDPO(), PSRL(), Greedy()], ids=lambda agent: agent.name)
def test_bound_holds_in_whole_runs_on_the_chain(agent, chain_run):
    run = chain_run(agent)
    assert_bound_holds(run)
    # Each q_t is optimal on its model, so that the model never expects a loss.
    assert (run.ledger.delta >= -1e-4).all()


@pytest.mark.slow
@pytest.mark.parametrize("agent", [CDPO(), PSRL(), Greedy(), UCRL()], ids=lambda agent: agent.name)
def test_bound_holds_on_random_mdps(agent):
    assert_bound_holds(simulate(PriorMDP(5), agent, seeds=8, steps=420, ledger=True))


@pytest.mark.slow
def test_bound_holds_under_optimism():
    run = simulate(Chain(5), UCRL(), seeds=8, steps=420, ledger=True)
    assert_bound_holds(run)
    assert (run.ledger.delta >= -1e-3).all()


@pytest.mark.slow
@pytest.mark.parametrize("agent", [CDPO(), PSRL(), Greedy(), UCRL()], ids=lambda agent: agent.name)
def test_bound_holds_where_episodes_end(agent):
    assert_bound_holds(simulate(DeepSea(3), agent, seeds=8, steps=192, ledger=True))


def test_successive_entries_add_up_to_the_value_gap(chain_run):
    run = chain_run(CDPO())
    gained = -np.diff(run.value_gap, axis=1)
    np.testing.assert_allclose(run.ledger.improvement[:, 1:], gained, atol=1e-5)


def test_no_error_where_the_model_is_the_truth(cases):
    for mdp, _, before, _, pi, _ in cases:
        known, truth = Known.of(mdp), Model.true(mdp)
        q, _ = optimal(truth, known, pi)
        entry = entry_of(mdp, Plan(before, before, None), Plan(q, q, truth), truth, both(truth, truth))
        assert entry.distance == entry.trust == 0
        # Compiled sums over the same numbers may be ordered differently: nothing but rounding is left.
        assert entry.error_q < 1e-5 and entry.error_pi < 1e-5
        assert entry.delta >= -1e-5
        assert entry.improvement == pytest.approx(float(entry.delta), abs=1e-5)


def test_kappa_is_infinite_exactly_when_q_goes_where_the_last_policy_does_not(cases, exact):
    kinds = set()
    for mdp, _, before, q, _, entry in cases:
        truth = exact.of(mdp)
        rho_q = truth.visitation(q)[:, None] * np.float64(q)
        rho_pi = truth.visitation(before)[:, None] * np.float64(before)
        new = (rho_q > 1e-12) & (rho_pi < 1e-15)
        kinds.add(bool(new.any()))
        if new.any():
            assert np.isposinf(entry.kappa)
            assert np.isneginf(entry.theorem(0.2))
        else:
            ratio = np.divide(rho_q**2, rho_pi, out=np.zeros_like(rho_q), where=rho_pi > 0)
            assert entry.kappa == pytest.approx(np.sqrt(ratio.sum()), rel=1e-3)
            assert entry.kappa >= rho_q.sum() / np.sqrt(rho_pi.sum()) - 1e-3
    assert kinds == {True, False}


def test_kappa_is_one_for_the_same_policy(cases):
    for mdp, _, before, _, _, _ in cases:
        if not mdp.terminal.any():
            plan, truth = Plan(before, before, None), Model.true(mdp)
            assert entry_of(mdp, plan, plan._replace(model=truth), truth, both(truth, truth)).kappa == pytest.approx(
                1, abs=1e-5
            )


def test_kappa_is_infinite_also_where_q_hardly_goes():
    """A visitation so small that its square is zero in float32, where the last policy never goes."""
    transition = np.repeat(np.eye(5)[:, None], 3, axis=1)
    transition[0, 1, 2] = 1e-25
    mdp = FiniteMDP(transition, 0.0)
    stay, leave = jnp.eye(3)[jnp.zeros(5, int)], jnp.eye(3)[jnp.array([1, 0, 0, 0, 0])]
    truth = Model.true(mdp)
    entry = entry_of(mdp, Plan(stay, stay, None), Plan(leave, leave, truth), truth, both(truth, truth))
    assert np.isposinf(entry.kappa)
