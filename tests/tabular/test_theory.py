"""The lemmas behind the paper's improvement theorem, with the library's own evaluation and visitation in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cdpo.tabular import planning
from cdpo.tabular.planning import Model, action_values

evaluate, visitation = jax.jit(planning.evaluate), jax.jit(planning.visitation)


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


class Case:
    """Truth, a wrong model of it and two policies, all random."""

    def __init__(self, seed, states=5, actions=3):
        rng = np.random.default_rng(seed)
        rows = lambda *shape: jnp.asarray(rng.dirichlet(np.ones(shape[-1]), size=shape[:-1]))  # noqa: E731
        self.gamma = jnp.asarray(rng.uniform(0.5, 0.95))
        self.start = rows(states)
        self.truth = Model(rows(states, actions, states), jnp.asarray(rng.normal(size=(states, actions))))
        self.model = Model(rows(states, actions, states), jnp.asarray(rng.normal(size=(states, actions))))
        self.pi, self.q = rows(states, actions), rows(states, actions)

    def j(self, model, policy):
        return float(self.start @ evaluate(model, policy, self.gamma))

    def occupancy(self, model, policy):
        return visitation(model, policy, self.start, self.gamma)[:, None] * policy

    def error(self, policy):
        """E_rho[gamma span(V_f) / 2 |f - f*|_1 + |r_f - r*|] / (1 - gamma)."""
        v = evaluate(self.model, policy, self.gamma)
        distance = jnp.sum(jnp.abs(self.model.transition - self.truth.transition), axis=-1)
        loss = self.gamma * (jnp.max(v) - jnp.min(v)) / 2 * distance
        loss += jnp.abs(self.model.reward - self.truth.reward)
        return float(jnp.sum(self.occupancy(self.truth, policy) * loss) / (1 - self.gamma))


SEEDS = pytest.mark.parametrize("seed", range(5))


@SEEDS
def test_value_is_the_expected_reward_under_the_visitation(seed):
    case = Case(seed)
    through_visitation = jnp.sum(case.occupancy(case.truth, case.pi) * case.truth.reward) / (1 - case.gamma)
    assert case.j(case.truth, case.pi) == pytest.approx(float(through_visitation), rel=1e-10)


@SEEDS
def test_simulation_lemma(seed):
    """J(pi) - J_f(pi) is what the model gets wrong at each step, on what pi visits in truth."""
    case = Case(seed)
    v = evaluate(case.model, case.pi, case.gamma)
    wrong = case.truth.reward - case.model.reward
    wrong += case.gamma * (case.truth.transition - case.model.transition) @ v
    difference = jnp.sum(case.occupancy(case.truth, case.pi) * wrong) / (1 - case.gamma)
    assert case.j(case.truth, case.pi) - case.j(case.model, case.pi) == pytest.approx(float(difference), rel=1e-9)


@SEEDS
def test_performance_difference_lemma(seed):
    """J(q) - J(pi) is the advantage over pi of what q does."""
    case = Case(seed)
    v = evaluate(case.truth, case.pi, case.gamma)
    advantage = action_values(case.truth, v, case.gamma) - v[:, None]
    difference = jnp.sum(case.occupancy(case.truth, case.q) * advantage) / (1 - case.gamma)
    assert case.j(case.truth, case.q) - case.j(case.truth, case.pi) == pytest.approx(float(difference), rel=1e-9)


@SEEDS
def test_performance_difference_and_model_error(seed):
    """With the span of the values as a factor, the model error bounds the difference from both sides."""
    case = Case(seed)
    delta = case.j(case.model, case.q) - case.j(case.model, case.pi)
    improvement = case.j(case.truth, case.q) - case.j(case.truth, case.pi)
    assert abs(improvement - delta) <= case.error(case.q) + case.error(case.pi)


def test_the_printed_equality_of_performance_difference_and_model_error_fails():
    """The paper prints J(q) - J(pi) = Delta - gamma (E_rho_q |f - f*|_1 + E_rho_pi |f - f*|_1) / (2 (1 - gamma)).

    pi stays where it is; q moves on, to a state worth 1 or one worth 0. The model errs by the same distance in two
    truths, once to the good side and once to the bad one. The printed right side is the same number in both: with
    values of span one it is attained in the bad truth, and wrong in the good one.
    """
    gamma, reward = 0.5, jnp.array([[0.0, 0.0], [0.5, 0.5], [0.0, 0.0]])
    model = np.repeat(np.eye(3)[:, None], 2, axis=1)
    model[0, 1] = [0, 0.5, 0.5]
    improvements, printed, bounds = [], [], []
    for row in ([0, 0.75, 0.25], [0, 0.25, 0.75]):
        truth = model.copy()
        truth[0, 1] = row
        case = Case(0, 3, 2)
        case.gamma, case.start = jnp.asarray(gamma), jnp.array([1.0, 0, 0])
        case.pi, case.q = jnp.array([[1.0, 0]] * 3), jnp.array([[0.0, 1]] * 3)
        case.model, case.truth = Model(jnp.asarray(model), reward), Model(jnp.asarray(truth), reward)
        delta = case.j(case.model, case.q) - case.j(case.model, case.pi)
        distance = jnp.sum(jnp.abs(case.model.transition - case.truth.transition), axis=-1)
        errors = [float(jnp.sum(case.occupancy(case.truth, p) * distance)) for p in (case.q, case.pi)]
        printed.append(delta - gamma / (2 * (1 - gamma)) * sum(errors))
        improvements.append(case.j(case.truth, case.q) - case.j(case.truth, case.pi))
        bounds.append(delta - case.error(case.q) - case.error(case.pi))
    assert improvements == pytest.approx([0.375, 0.125])
    assert printed == pytest.approx([0.125, 0.125])
    assert bounds == pytest.approx([0.125, 0.125])


def test_the_printed_change_of_measure_fails():
    """The paper's proof has E_rho_q[x] <= E_rho_pi[x] kappa, kappa^2 = E_rho_pi[(d rho_q / d rho_pi)^2].

    Cauchy and Schwarz give the root mean square of x in place of its mean: with the mean it can fail by any factor.
    """
    rho_pi, rho_q, error = np.array([0.99, 0.01]), np.array([0.0, 1.0]), np.array([0.0, 1.0])
    kappa = np.sqrt(np.sum(rho_q**2 / rho_pi))
    assert rho_q @ error > 5 * kappa * (rho_pi @ error)
    assert rho_q @ error <= kappa * np.sqrt(rho_pi @ error**2) + 1e-12


def test_the_printed_step_from_the_simulation_lemma_to_widths_lacks_a_factor():
    """The paper's regret proof prints |V^f - V^f~| = gamma |E_rho~[(f - f~) V^f]| <= gamma E_rho~[L |f - f~|].

    Of two places, 0 and 1, the second pays. One model moves there at once, the other never. rho~ is normalised, and the
    printed right side has lost 1/(1 - gamma): with it both hold, and here they are equalities.
    """
    gamma, place = jnp.asarray(0.9), jnp.array([0.0, 1.0])
    start, policy, reward = jnp.array([1.0, 0.0]), jnp.ones((2, 1)), jnp.array([[0.0], [1.0]])
    moves = Model(jnp.array([[[0.0, 1.0]], [[0.0, 1.0]]]), reward)
    stays = Model(jnp.array([[[1.0, 0.0]], [[0.0, 1.0]]]), reward)
    values = evaluate(moves, policy, gamma)
    difference = float(start @ (values - evaluate(stays, policy, gamma)))
    visited = visitation(stays, policy, start, gamma)
    through_lemma = gamma * visited @ ((moves.transition - stays.transition)[:, 0] @ values)
    lipschitz = jnp.abs(values[1] - values[0])
    widths = gamma * lipschitz * visited @ jnp.abs((moves.transition - stays.transition)[:, 0] @ place)
    assert visited.sum() == pytest.approx(1.0)
    assert [float(through_lemma), float(widths)] == pytest.approx([0.9, 0.9])
    assert difference == pytest.approx(9.0) and difference > 5 * widths
    assert difference == pytest.approx(float(through_lemma / (1 - gamma)))
    assert difference == pytest.approx(float(widths / (1 - gamma)))


@SEEDS
def test_the_step_from_the_simulation_lemma_holds_with_the_factor(seed):
    case = Case(seed)
    model = Model(case.model.transition, case.truth.reward)  # the paper's models know the rewards
    moved = jnp.sum((model.transition - case.truth.transition) * evaluate(model, case.pi, case.gamma), axis=-1)
    through_lemma = case.gamma * jnp.sum(case.occupancy(case.truth, case.pi) * moved)
    difference = case.j(model, case.pi) - case.j(case.truth, case.pi)
    assert difference == pytest.approx(float(through_lemma / (1 - case.gamma)), rel=1e-9)
    assert abs(difference) > 1.5 * abs(float(through_lemma))


def test_widths_do_not_shrink_where_nothing_is_executed():
    """The paper adds up the widths of what q_t and pi_{f_t} would visit, by a lemma about what was executed.

    Two actions, a mean each, bounded by one; the first is always executed, q_t would take the second. What is
    consistent with the data of the first says nothing of the second, so its width is the same in every iteration.
    """
    means = np.linspace(0, 1, 11)
    models = np.array([(first, second) for first in means for second in means])
    rng, beta, iterations, told = np.random.default_rng(0), 1.0, 400, []
    widths = []
    for _ in range(iterations):
        fit = np.mean(told) if told else 0.5
        # |f - f_ls|_{2, E_t} <= sqrt(beta), where all data are of the first action
        kept = models[len(told) * (models[:, 0] - fit) ** 2 <= beta]
        widths.append(np.ptp(kept, axis=0))
        told.append(0.5 + 0.1 * rng.normal())
    executed, imagined = np.sum(widths, axis=0)
    assert imagined == pytest.approx(iterations)
    assert executed < 4 * np.sqrt(iterations)
