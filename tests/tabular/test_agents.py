import itertools
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, special, stats

from cdpo.errors import UserError
from cdpo.noise import fold
from cdpo.tabular.agents import AGENTS, BQL, CDPO, MM, PSRL, UBE, UCRL, Greedy, Oracle, QLearning, Random
from cdpo.tabular.agents.base import Belief, Plan, probability_of_best
from cdpo.tabular.agents.bql import BQLMemory, inverse_log_minus_digamma, mixture_update
from cdpo.tabular.agents.q_learning import Noise, QMemory
from cdpo.tabular.agents.ube import dirichlet_variance, expected_mean_variance, largest_squared_value
from cdpo.tabular.agents.ucrl import extended_value_iteration
from cdpo.tabular.mdp import FiniteMDP
from cdpo.tabular.planning import Known, Model, evaluate, policy_iteration, uniform_policy, visitation
from cdpo.tabular.posterior import NormalGamma, Posterior, Prior, Transitions

S, A = 4, 2
KEY = jax.random.key(0)


@cache
def compiled(agent):
    """One executable for each agent; compiled with little optimisation, since it runs only a few times."""
    return jax.jit(agent.improve, compiler_options={"xla_backend_optimization_level": 0})


def improve(agent, last, belief, key=KEY):
    return compiled(agent)(last, belief, key)


optimal = jax.jit(policy_iteration)


def plan_of(policy):
    policy = jnp.asarray(policy, jnp.float32)
    return Plan(policy, policy, None)


@pytest.fixture(scope="module")
def mdp(random_mdp):
    return random_mdp(np.random.default_rng(4), S, A)


@pytest.fixture(scope="module")
def little(mdp):
    """A belief after a few made-up observations."""
    rng = np.random.default_rng(0)
    steps = Transitions(
        *(jnp.asarray(rng.integers(n, size=20)) for n in (S, A)),
        jnp.float32(rng.normal(size=20)),
        jnp.asarray(rng.integers(S, size=20)),
        jnp.ones(20),
    )
    return Belief(Posterior.initial(S, A, Prior()).update(steps), Known.of(mdp), jnp.array(1))


@pytest.fixture(scope="module")
def certain(mdp):
    """A belief that is all but certain of the truth."""
    posterior = Posterior(1e7 * mdp.transition, mdp.reward_mean, jnp.zeros((S, A, S)), Prior())
    return Belief(posterior, Known.of(mdp), jnp.array(0))


UNIFORM = plan_of(np.full((S, A), 1 / A))


@pytest.mark.parametrize("agent", [Greedy(), PSRL(), CDPO(), UCRL(width=1e-3)], ids=lambda agent: agent.name)
def test_with_certainty_all_four_frameworks_plan_optimally(agent, mdp, certain):
    best, _ = optimal(Model.true(mdp), certain.known, UNIFORM.policy)
    plan = improve(agent, UNIFORM, certain)
    np.testing.assert_allclose(plan.policy, best, atol=1e-5)
    np.testing.assert_allclose(plan.reference, best, atol=1e-5)
    np.testing.assert_allclose(plan.model.transition, mdp.transition, atol=3e-3)
    np.testing.assert_allclose(plan.model.reward, mdp.reward, atol=3e-3)


def test_greedy_plans_on_the_mean_model(little):
    mean = little.posterior.mean(little.known)
    best, _ = optimal(mean, little.known, UNIFORM.policy)
    for key in (KEY, jax.random.key(1)):
        plan = improve(Greedy(), UNIFORM, little, key)
        np.testing.assert_array_equal(plan.policy, best)
        np.testing.assert_allclose(plan.model.reward, mean.reward, rtol=1e-6)


def test_psrl_plans_on_one_draw(little):
    agent = compiled(PSRL())
    models = [agent(UNIFORM, little, jax.random.key(seed)).model.transition for seed in range(3)]
    assert np.abs(models[0] - models[1]).max() > 0.01
    plan = agent(UNIFORM, little, KEY)
    best, _ = optimal(plan.model, little.known, UNIFORM.policy)
    np.testing.assert_array_equal(plan.policy, best)


def test_cdpo_keeps_to_its_trust_region_around_the_reference(little):
    mean = little.posterior.mean(little.known)
    agent = compiled(CDPO())
    used = []
    for seed in range(20):
        plan = agent(UNIFORM, little, jax.random.key(seed))
        occupancy = jax.jit(visitation)(mean, plan.reference, little.known.start, little.known.discount)
        used.append(float(occupancy @ (0.5 * jnp.abs(plan.policy - plan.reference).sum(-1))))
        np.testing.assert_allclose(plan.policy.sum(-1), 1, atol=1e-5)
    assert max(used) == pytest.approx(0.2, abs=1e-5)


class Sure(NamedTuple):
    """A posterior of one model."""

    model: Model

    def mean(self, known):
        return self.model

    def sample_set(self, known, key, models):
        return jax.tree.map(lambda leaf: leaf[None], self.model)


@pytest.mark.parametrize("constraint", ["occupancy-weighted", "occupancy-current"])
def test_cdpo_bounds_the_distance_by_visits_from_the_current_state_or_weighs_its_objective_by_visits(
    random_mdp, exact, constraint
):
    """Held against a linear program: the share of q that goes to the other one of two actions, at each state."""
    agent = CDPO(constraint=constraint, update="conservative")  # q is the policy before
    for seed in range(8):
        rng = np.random.default_rng(seed)
        mdp = random_mdp(rng, S, A)
        truth, state, q = exact.of(mdp), rng.integers(S), np.eye(A)[rng.integers(A, size=S)]
        belief = Belief(Sure(Model.true(mdp)), Known.of(mdp), jnp.asarray(state))
        best, _ = optimal(Model.true(mdp), belief.known, UNIFORM.policy)
        gain = np.sum((1 - 2 * q) * truth.q(best), axis=-1)
        visits = truth.visitation(q, np.eye(S)[state] if constraint == "occupancy-current" else None)
        weight = visits if constraint == "occupancy-weighted" else np.ones(S)
        program = optimize.linprog(-weight * gain, A_ub=visits[None], b_ub=[agent.eta], bounds=(0, 1))
        policy = improve(agent, plan_of(q), belief).policy
        np.testing.assert_allclose(np.sum(policy * (1 - q), axis=-1), program.x, atol=1e-4)


def test_cdpo_with_one_model_and_no_constraint_is_psrl(little):
    cdpo, psrl = (compiled(agent) for agent in (CDPO(models=1, constraint="none"), PSRL()))
    for seed in range(5):
        key = jax.random.key(seed)
        same_draw = fold(fold(key, 1), 0)
        np.testing.assert_array_equal(cdpo(UNIFORM, little, key).policy, psrl(UNIFORM, little, same_draw).policy)


def test_cdpo_seeks_one_policys_expected_value_and_has_it_judged_by_fresh_models(little):
    """What the models that it was made on hold to be better, and what those that judge do not."""
    last, belief = UNIFORM, little
    known, seen = belief.known, {}
    for agent in (CDPO(value="expected", models=5), CDPO(models=5), CDPO(value="expected", models=5, judges=50)):
        plan = improve(agent, last, belief)
        models = belief.posterior.sample_set(known, fold(KEY, 1), 5)
        gained = jax.vmap(
            lambda m, p=plan: (
                known.start @ (evaluate(m, p.policy, known.discount) - evaluate(m, p.reference, known.discount))
            )
        )
        seen[agent.value, agent.judges] = np.mean(gained(models)), np.asarray(plan.policy)
    assert seen["expected", 0][0] >= max(0.0, seen["optimal", 0][0]) - 1e-5
    assert seen["expected", 50][0] < seen["expected", 0][0]


def test_cdpo_ablations(little):
    last = plan_of([[0.2, 0.8], [1, 0], [0.5, 0.5], [0, 1]])
    greedy = improve(Greedy(), last, little).policy
    referential = improve(CDPO(update="referential"), last, little)
    np.testing.assert_array_equal(referential.policy, greedy)
    np.testing.assert_array_equal(referential.reference, greedy)
    held = improve(CDPO(update="conservative", constraint="pointwise", eta=0.0), last, little)
    np.testing.assert_array_equal(held.policy, last.policy)
    np.testing.assert_array_equal(held.reference, last.policy)
    previous = improve(CDPO(constraint="previous", eta=0.2), last, little)
    assert (0.5 * np.abs(previous.policy - last.policy).sum(-1) <= 0.2 + 1e-6).all()
    np.testing.assert_array_equal(previous.reference, greedy)


def test_cdpo_reference_model(little):
    mean = improve(CDPO(update="referential"), UNIFORM, little).model
    np.testing.assert_allclose(mean.transition, little.posterior.mean(little.known).transition, rtol=1e-6)
    least = improve(CDPO(update="referential", reference="least-squares"), UNIFORM, little).model
    np.testing.assert_allclose(least.transition, little.posterior.least_squares(little.known).transition, rtol=1e-6)
    sampled = compiled(CDPO(update="referential", reference="sample"))
    one, other = (sampled(UNIFORM, little, jax.random.key(seed)).model.transition for seed in (0, 1))
    assert np.abs(one - other).max() > 0.01


# UBE and MM.


@pytest.fixture(scope="module")
def dirichlet_draws(little):
    """[draws, S, A, S] in float64, by NumPy."""
    rng = np.random.default_rng(3)
    concentration = np.asarray(little.posterior.concentration, np.float64)
    weight = rng.gamma(concentration, size=(60_000, *concentration.shape))
    return weight / weight.sum(-1, keepdims=True)


def test_closed_form_moments_equal_simulation(little, dirichlet_draws):
    posterior = little.posterior
    value = np.array([1.0, -2.0, 0.5, 3.0])
    target = np.asarray(posterior.rewards.mean, np.float64) + 0.9 * value
    found = dirichlet_variance(posterior, jnp.float32(target))
    np.testing.assert_allclose(found, np.sum(dirichlet_draws * target, axis=-1).var(0), rtol=0.04)
    np.testing.assert_allclose(
        dirichlet_variance(posterior, jnp.float32(value)), (dirichlet_draws @ value).var(0), rtol=0.04
    )
    uncertainty = np.asarray(posterior.rewards.mean_variance, np.float64)
    found = expected_mean_variance(posterior)
    np.testing.assert_allclose(found, np.sum(dirichlet_draws * uncertainty, axis=-1).mean(0), rtol=0.02)


@pytest.mark.parametrize("agent", [UBE(zeta=0.002), MM(zeta=0.025)], ids=lambda agent: agent.name)
def test_thompson_probabilities_equal_those_of_a_simulated_local_variance(agent, little, dirichlet_draws, exact):
    """The whole plan, from simulated moments and float64 solutions."""
    plan = improve(agent, UNIFORM, little)
    model = exact(little.posterior.mean(little.known), little.known)
    gamma = model.discount
    rewards = np.asarray(little.posterior.rewards.mean, np.float64)
    mean_variance = np.asarray(little.posterior.rewards.mean_variance, np.float64)
    sure = np.sum(dirichlet_draws * mean_variance, axis=-1).mean(0)
    reward_draws = np.sum(dirichlet_draws * rewards, axis=-1)
    value = model.value(plan.reference)
    if agent.name == "ube":
        squares = np.sum(dirichlet_draws * (rewards**2 + mean_variance), axis=-1).mean(0)
        most = np.sqrt(squares.max()) / (1 - gamma)
        ratio = np.sum(dirichlet_draws.var(0) / dirichlet_draws.mean(0), axis=-1)
        local = sure + reward_draws.var(0) + most**2 * ratio
    else:
        value_draws = dirichlet_draws @ value
        product = (reward_draws - reward_draws.mean(0)) * (value_draws - value_draws.mean(0))
        local = sure + reward_draws.var(0) + 2 * gamma * product.mean(0) + gamma**2 * value_draws.var(0)
    under, at_policy = model.under(plan.reference)[0], np.sum(np.asarray(plan.reference) * local, axis=-1)
    spread = local + gamma**2 * model.transition @ np.linalg.solve(np.eye(S) - gamma**2 * under, at_policy)
    q = model.q(plan.reference)
    z = (q[:, 0] - q[:, 1]) / (agent.zeta * np.sqrt(spread.sum(-1)))
    found = stats.norm.ppf(np.asarray(plan.policy[:, 0], np.float64))
    assert 0.5 < np.abs(z).max() < 4  # neither a coin nor certain, or the spread would not show
    np.testing.assert_allclose(found, z, rtol=0.03)


@pytest.fixture(scope="module")
def losses():
    """Every transition seen thrice, each paid for by one of six losses that are as good as certain."""
    reward = np.array([[-0.948, -0.5], [-0.3, -0.066], [-0.7, -0.2]])
    paid = jnp.asarray(np.repeat(reward[:, :, None], 3, axis=2), jnp.float32)
    prior = Prior(mean=-0.5, strength=1e-6, rate=1e-6)
    known = Known.of(FiniteMDP(np.full((3, 2, 3), 1 / 3), reward, discount=0.9))
    return reward, Belief(Posterior(jnp.full((3, 2, 3), 3.0), paid, 0 * paid, prior), known, jnp.array(0))


def test_ube_bounds_values_by_their_size_where_all_that_can_be_had_is_loss(losses):
    """Nothing can be worth less than -9.48: with Dirichlet(4, 4, 4) rows each local variance is 89.9 (3 - 1) / 13."""
    reward, belief = losses
    agent = UBE(zeta=0.1)
    plan = improve(agent, plan_of(np.full((3, 2), 0.5)), belief)
    value = np.linalg.solve(np.eye(3) - 0.9 / 3, reward.max(1))  # every row is even, so the better reward is better
    q = reward + 0.9 * value.mean()
    spread = (0.948 / 0.1) ** 2 * 2 / 13 / (1 - 0.81)
    z = (q[:, 0] - q[:, 1]) / (agent.zeta * np.sqrt(2 * spread))
    np.testing.assert_allclose(plan.policy[:, 0], stats.norm.cdf(z), atol=1e-3)


def test_ubes_bound_dominates_the_variance_of_every_possible_value(losses):
    """By brute force: rows drawn from the posterior, and values in every corner of what is possible."""
    _, belief = losses
    most = 0.948 / 0.1
    rows = np.random.default_rng(0).dirichlet([4.0, 4.0, 4.0], size=50_000)
    corners = np.array(np.meshgrid(*[[-most, most]] * 3)).reshape(3, -1)
    worst = (rows @ corners).var(0).max()
    bound = float(largest_squared_value(belief.posterior, belief.known)) * 2 / 13
    assert 0.4 * bound < worst <= bound


def test_ubes_bound_holds_for_values_drawn_from_the_posterior():
    """Of every policy, in a layered problem as the paper assumes: three layers of two states, then the end."""
    layers = np.array([0, 0, 1, 1, 2, 2, 3])
    ahead = layers[None, None, :] == np.minimum(layers + 1, 3)[:, None, None]
    known = Known.of(FiniteMDP(ahead / ahead.sum(-1, keepdims=True) * np.ones((7, 2, 1)), -0.4, terminal=layers == 3))
    prior = Prior(concentration=1e-6, mean=-0.4, strength=1.0, shape=3.0, rate=0.5)
    nothing = jnp.zeros((7, 2, 7))
    posterior = Posterior(nothing + ahead, nothing, nothing, prior)
    models = jax.jit(lambda key: posterior.sample_set(known, key, 5_000))(KEY)
    transition, reward = np.float64(models.transition), np.float64(models.reward)
    bound = float(largest_squared_value(posterior, known))
    for actions in itertools.product([0, 1], repeat=6):
        rows, pay = transition[:, np.arange(6), actions], reward[:, np.arange(6), actions]
        value = np.zeros((5_000, 7))
        for _ in range(3):
            value[:, :6] = pay + 0.9 * np.einsum("nst,nt->ns", rows, value)
        assert (value**2).mean(0).max() < bound


@pytest.mark.parametrize("actions", [1, 2, 4])
def test_probability_of_best_equals_simulation(actions):
    rng = np.random.default_rng(actions)
    mean = rng.normal(size=(3, actions))
    deviation = rng.uniform(0.2, 2, size=(3, actions))
    allowed = np.ones((3, actions), bool)
    if actions > 1:
        allowed[1, 1] = False
    draws = np.where(allowed, mean + deviation * rng.normal(size=(100_000, 3, actions)), -np.inf)
    expected = np.stack([(draws.argmax(-1) == a).mean(0) for a in range(actions)], axis=-1)
    found = np.asarray(jax.jit(probability_of_best)(jnp.float32(mean), jnp.float32(deviation), jnp.asarray(allowed)))
    np.testing.assert_allclose(found, expected, atol=0.005)
    np.testing.assert_allclose(found.sum(-1), 1, atol=1e-5)
    assert (found[~allowed] == 0).all()


@pytest.mark.parametrize("actions", [2, 4])
def test_probability_of_best_without_noise_is_the_best_action(actions):
    mean = np.random.default_rng(0).normal(size=(3, actions))
    found = probability_of_best(jnp.float32(mean), jnp.zeros((3, actions)), jnp.ones((3, actions), bool))
    np.testing.assert_allclose(found, np.eye(actions)[mean.argmax(-1)], atol=1e-6)


# BQL.


def exact_mixture(belief, observed):
    """Moments of the mixture of posteriors in float64, and the Normal-Gamma with these moments by root finding."""
    mean0, strength0, shape0, rate0 = belief
    strength, shape = strength0 + 1, shape0 + 0.5
    mean = (strength0 * mean0 + observed) / strength
    rate = rate0 + strength0 * (observed - mean0) ** 2 / (2 * strength)
    tau = np.mean(shape / rate)
    mu_tau = np.mean(mean * shape / rate)
    mu2_tau = np.mean(1 / strength + mean**2 * shape / rate)
    log_tau = np.mean(special.digamma(shape) - np.log(rate))
    centre = mu_tau / tau
    y = np.log(tau) - log_tau
    new_shape = optimize.brentq(lambda x: np.log(x) - special.digamma(x) - y, 1e-3, 1e8)
    new_shape = max(1 + 1e-6, new_shape)
    return centre, 1 / (mu2_tau - tau * centre**2), new_shape, new_shape / tau, (tau, mu_tau, mu2_tau, log_tau)


BELIEFS = [(0.0, 4.0, 3.0, 3.0), (2.0, 1.0, 1.2, 0.1), (-1.0, 50.0, 20.0, 5.0)]


@pytest.mark.parametrize("belief", BELIEFS)
def test_mixture_update_equals_float64(belief):
    observed = np.random.default_rng(0).normal(loc=1, scale=2, size=1000)
    found = jax.jit(mixture_update)(NormalGamma(*(jnp.float32(x) for x in belief)), jnp.float32(observed))
    *expected, _ = exact_mixture(belief, observed)
    np.testing.assert_allclose([float(x) for x in found], expected, rtol=3e-3)


def test_the_mixtures_moments_are_those_of_its_draws():
    """The four moments behind the projection, by drawing (mu, tau) from the mixture itself."""
    rng = np.random.default_rng(1)
    mean0, strength0, shape0, rate0 = belief = BELIEFS[0]
    observed = rng.normal(loc=1, scale=2, size=1000)
    *_, moments = exact_mixture(belief, observed)
    y = rng.choice(observed, size=1_000_000)
    rate = rate0 + strength0 * (y - mean0) ** 2 / (2 * (strength0 + 1))
    tau = rng.gamma(shape0 + 0.5, size=y.shape) / rate
    mu = (strength0 * mean0 + y) / (strength0 + 1) + rng.normal(size=y.shape) / np.sqrt((strength0 + 1) * tau)
    drawn = [x.mean() for x in (tau, mu * tau, mu**2 * tau, np.log(tau))]
    np.testing.assert_allclose(drawn, moments, rtol=0.02)


def test_one_certain_observation_is_the_conjugate_update():
    found = jax.jit(mixture_update)(NormalGamma(*(jnp.float32(x) for x in BELIEFS[0])), jnp.full(1000, 2.0))
    np.testing.assert_allclose([float(x) for x in found], (0.4, 5, 3.5, 3 + 4 * 4 / 10), rtol=2e-3)


def test_inverse_log_minus_digamma_round_trip():
    with jax.enable_x64(True):
        x = np.geomspace(0.05, 1e4, 40)
        np.testing.assert_allclose(inverse_log_minus_digamma(jnp.asarray(np.log(x) - special.digamma(x))), x, rtol=1e-6)
    x = np.geomspace(0.5, 200, 20)
    found = jax.jit(inverse_log_minus_digamma)(jnp.float32(np.log(x) - special.digamma(x)))
    np.testing.assert_allclose(found, x, rtol=1e-2)


@pytest.fixture(scope="module")
def ring():
    """Two live states and an end; the second action is missing in state 0."""
    transition = np.zeros((3, 2, 3))
    transition[0, :, 1] = transition[1, 0, 0] = transition[1, 1, 2] = transition[2, :, 2] = 1
    allowed = np.array([[True, False], [True, True], [True, True]])
    return FiniteMDP(transition, 1.0, terminal=[False, False, True], allowed=allowed, discount=0.5)


def step_of(state, action, reward, successor):
    return Transitions(*(jnp.asarray(x) for x in (state, action, reward, successor, 1.0)))


def test_bql_learns_from_the_end_alone_what_was_received(ring):
    """Behind the end there is no return, so the update is conjugate."""
    agent = BQL(samples=100)
    memory = agent.begin(ring, Prior())
    noise = jax.tree.map(lambda x: x[0], agent.noise(KEY, 1, memory.known))
    found = jax.jit(agent.learn)(memory, step_of(1, 1, 2.0, 2), noise).returns
    np.testing.assert_allclose([float(x[1, 1]) for x in found], (0.4, 5, 3.5, 4.6), rtol=2e-3)
    untouched = np.ones((3, 2), bool)
    untouched[1, 1] = False
    for before, after in zip(memory.returns, found, strict=True):
        np.testing.assert_array_equal(np.asarray(before)[untouched], np.asarray(after)[untouched])


def test_bql_never_takes_a_missing_action(ring):
    agent = BQL()
    memory = agent.begin(ring, Prior())
    high = memory.returns._replace(mean=memory.returns.mean.at[0, 1].set(100.0))
    memory = BQLMemory(high, memory.known)
    noise = agent.noise(KEY, 50, memory.known)
    actions = jax.jit(jax.vmap(agent.act, in_axes=(None, None, 0)))(memory, jnp.array(0), noise)
    np.testing.assert_array_equal(actions, 0)
    _, plan = jax.jit(agent.plan)(memory, jnp.array(0), KEY)
    np.testing.assert_array_equal(plan.policy[0], [1, 0])


# Q-learning and the ends of the scale.


def test_q_learning_learns_by_temporal_differences(ring):
    agent = QLearning(step_size=0.1)
    memory = agent.begin(ring, Prior())
    memory = QMemory(jnp.array([[1.0, 9.0], [2.0, 4.0], [7.0, 7.0]]), memory.known)
    # From 0 to 1: the best that can follow is 4. From 1 to 0: action 1 is missing there, so 1. Into the end: nothing.
    for step, expected in (
        (step_of(0, 0, 0.5, 1), 1 + 0.1 * (0.5 + 0.5 * 4 - 1)),
        (step_of(1, 0, 0.5, 0), 2 + 0.1 * (0.5 + 0.5 * 1 - 2)),
        (step_of(1, 1, 0.5, 2), 4 + 0.1 * (0.5 - 4)),
    ):
        found = agent.learn(memory, step, None).q
        assert float(found[step.state, step.action]) == pytest.approx(expected)
        assert int((found != memory.q).sum()) == 1


def test_q_learning_acts_epsilon_greedily(ring):
    agent = QLearning(epsilon=0.5)
    memory = QMemory(jnp.array([[0.0, 9.0], [1.0, 2.0], [3.0, 3.0]]), agent.begin(ring, Prior()).known)
    noise = agent.noise(KEY, 20_000, memory.known)
    act = jax.jit(jax.vmap(agent.act, in_axes=(None, None, 0)))
    _, plan = agent.plan(memory, jnp.array(0), KEY)
    for state, share in ((0, 0.0), (1, 0.75), (2, 0.5)):
        assert float(plan.policy[state, 1]) == pytest.approx(share)
        assert float(act(memory, jnp.array(state), noise).mean()) == pytest.approx(share, abs=0.015)
    np.testing.assert_array_equal(act(memory, jnp.array(1), Noise(noise.explore * 0 + 1, noise.priority)), 1)


def test_oracle_and_random(ring):
    _, plan = Oracle().plan(Oracle().begin(ring, Prior()), jnp.array(0), KEY)
    np.testing.assert_array_equal(plan.policy[:2], [[1, 0], [1, 0]])  # for ever 1 a step, rather than the end
    _, plan = Random().plan(Random().begin(ring, Prior()), jnp.array(0), KEY)
    np.testing.assert_array_equal(plan.policy, [[1, 0], [0.5, 0.5], [0.5, 0.5]])


# UCRL.


extend = jax.jit(extended_value_iteration)


@pytest.fixture(scope="module")
def extended(random_mdp):
    """Extended value iteration on random frequencies and widths."""
    found = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        mdp = random_mdp(rng, S, A, ending=seed == 2, masked=seed == 1)
        distance = rng.uniform(0, 1.5, size=(S, A)).astype(np.float32)
        known = Known.of(mdp)
        policy, model = extend(mdp.transition, mdp.reward, jnp.asarray(distance), known, uniform_policy(mdp.allowed))
        found.append((mdp, known, distance, policy, model))
    return found


def most_favourable(row, distance, value):
    """max p . value over the simplex with |p - row|_1 <= distance."""
    n = len(row)
    identity = np.eye(n)
    answer = optimize.linprog(
        np.concatenate([-value, np.zeros(n)]),
        A_ub=np.block([[identity, -identity], [-identity, -identity], [np.zeros((1, n)), np.ones((1, n))]]),
        b_ub=np.concatenate([row, -row, [distance]]),
        A_eq=np.concatenate([np.ones(n), np.zeros(n)])[None],
        b_eq=[1],
    )
    assert answer.status == 0
    return -answer.fun


def test_extended_value_iteration_finds_the_most_favourable_model(extended, exact):
    for mdp, known, distance, policy, model in extended:
        found = exact(model, known)
        terminal, allowed = np.asarray(mdp.terminal), np.asarray(mdp.allowed)
        value = np.where(terminal, 0, found.value(policy))
        rows = np.asarray(mdp.transition, np.float64)
        rows /= rows.sum(-1, keepdims=True)
        for s, a in np.ndindex(S, A):
            best = most_favourable(rows[s, a], float(distance[s, a]), value)
            assert found.transition[s, a] @ value == pytest.approx(best, abs=2e-3)
            if not terminal.any():
                assert np.abs(found.transition[s, a] - rows[s, a]).sum() <= distance[s, a] + 1e-4
        # The policy is greedy on the values of its own model: no allowed action is better.
        q = np.where(allowed, found.reward + found.discount * found.transition @ value, -np.inf)
        np.testing.assert_allclose(q.max(-1)[~terminal], value[~terminal], atol=2e-3)


def test_optimism_counts_on_the_best_of_the_actions_to_come():
    transition = np.tile(np.eye(S)[:, None], (1, A, 1))  # every state leads to itself, but for one action of the first
    transition[0, 1] = np.eye(S)[1]
    reward = np.zeros((S, A))
    reward[0, 0], reward[1] = 0.5, (1.0, -10.0)  # to stay pays 5 in all; there the better action pays 9
    mdp = FiniteMDP(transition, reward, discount=0.9)
    policy, _ = extend(mdp.transition, mdp.reward, jnp.zeros((S, A)), Known.of(mdp), uniform_policy(mdp.allowed))
    np.testing.assert_array_equal(policy[:2], [[0, 1], [1, 0]])


def test_optimism_never_falls_below_the_empirical_optimum(extended, exact):
    for mdp, known, _, policy, model in extended:
        best, _ = optimal(Model.true(mdp), known, uniform_policy(mdp.allowed))
        live = ~np.asarray(mdp.terminal)
        assert (exact(model, known).value(policy)[live] >= exact.of(mdp).value(best)[live] - 2e-3).all()


def test_without_width_the_plan_is_the_empirical_models_optimum(mdp, certain):
    known = certain.known
    best, _ = optimal(Model.true(mdp), known, UNIFORM.policy)
    plan = improve(UCRL(width=0.0), UNIFORM, certain)
    np.testing.assert_array_equal(plan.policy, best)
    np.testing.assert_allclose(plan.model.transition, mdp.transition, atol=1e-5)
    np.testing.assert_allclose(plan.model.reward, mdp.reward, rtol=1e-4, atol=1e-5)


def test_transition_widths_are_those_of_ucrl2(little):
    """Jaksch et al. (2010), section 3.1: after t steps, N(s, a) of them at (s, a), with a probability of delta."""
    found = improve(UCRL(width=1e-3), UNIFORM, little).model  # so narrow that no width meets the end of a simplex
    count = np.asarray(little.posterior.count, np.float64)
    visits, t, delta = count.sum(-1), count.sum(), 0.05
    seen, n = visits > 0, np.maximum(1, visits)
    transition = np.sqrt(14 * S * np.log(2 * A * t / delta) / n)  # in L1
    frequency = count / n[..., None]
    moved = np.abs(found.transition - frequency).sum(-1)
    free = seen & (moved > 0)  # a row that leads to the best state for certain has nowhere better to go
    assert free.sum() > 2
    np.testing.assert_allclose(moved[free], (1e-3 * transition)[free], rtol=1e-3)


@pytest.mark.parametrize(
    ("agent", "settings", "message"),
    [
        (CDPO, {"eta": -0.1}, "eta"),
        (CDPO, {"eta": 1.1}, "eta"),
        (CDPO, {"eta": float("nan")}, "eta"),
        (CDPO, {"models": 0}, "models"),
        (CDPO, {"judges": -1}, "judges"),
        (CDPO, {"judges": 29}, "judges"),
        (CDPO, {"judges": 100, "update": "referential"}, "judges"),
        (CDPO, {"value": "expected", "constraint": "occupancy-weighted"}, "value optimal"),
        (CDPO, {"value": "expected", "aggregation": "quantile"}, "value optimal"),
        (CDPO, {"quantile": 1.5}, "quantile"),
        (CDPO, {"quantile": -0.5}, "quantile"),
        (UBE, {"zeta": -1.0}, "zeta"),
        (MM, {"zeta": -1.0}, "zeta"),
        (UBE, {"zeta": float("nan")}, "zeta"),
        (MM, {"zeta": float("nan")}, "zeta"),
        (BQL, {"samples": 1}, "samples"),
        (QLearning, {"epsilon": 1.5}, "epsilon"),
        (QLearning, {"epsilon": -0.5}, "epsilon"),
        (QLearning, {"step_size": 2.0}, "step_size"),
        (QLearning, {"step_size": -1.0}, "step_size"),
        (UCRL, {"confidence": 0.0}, "confidence"),
        (UCRL, {"confidence": 1.0}, "confidence"),
        (UCRL, {"width": -1.0}, "width"),
        (UCRL, {"width": float("nan")}, "width"),
    ],
)
def test_a_setting_outside_its_range_is_the_users_mistake(agent, settings, message):
    with pytest.raises(UserError, match=message):
        agent(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"constraint": "pointwse"},
        {"reference": "median"},
        {"update": "both"},
        {"value": "best"},
        {"aggregation": "max"},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_an_unknown_choice_is_the_users_mistake(settings):
    with pytest.raises(UserError, match=next(iter(settings.values()))):
        CDPO(**settings)


def test_every_agent_has_its_name():
    assert {name: agent.name for name, agent in AGENTS.items()} == {name: name for name in AGENTS}
    assert len(AGENTS) == 10
