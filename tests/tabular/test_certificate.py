import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cdpo.tabular.certificate import certify
from cdpo.tabular.environments import PriorMDP
from cdpo.tabular.planning import Known, Model, visitation
from cdpo.tabular.trust import Trust


def problem(seed, states=3, actions=2, count=5):
    keys = jax.random.split(jax.random.key(seed), count)
    models = jax.vmap(lambda key: Model.true(PriorMDP(states, actions).make(key)))(keys)
    known = Known.of(PriorMDP(states, actions).make(keys[0]))
    centre = jnp.eye(actions)[jnp.arange(states) % actions]
    return centre, models, known


def grid(states, actions, steps):
    """Every policy whose probabilities are multiples of 1 / steps, [n, S, A]."""
    rows = [np.array(row) for row in itertools.product(range(steps + 1), repeat=actions) if sum(row) == steps]
    return np.array(list(itertools.product(rows, repeat=states))) / steps


def values(policies, models, known):
    transition, reward = np.asarray(models.transition, np.float64), np.asarray(models.reward, np.float64)
    moves = np.einsum("bsa,ksat->bkst", policies, transition)
    paid = np.einsum("bsa,ksa->bks", policies, reward)
    system = np.eye(transition.shape[1]) - float(known.discount) * moves
    return np.linalg.solve(system, paid[..., None])[..., 0].mean(axis=1)[:, 0]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["none", "occupancy", "pointwise"])
@pytest.mark.parametrize(("states", "actions"), [(3, 2), (2, 3)])
def test_the_bound_is_above_every_policy_of_the_region(states, actions, seed, kind):
    centre, models, known = problem(seed, states, actions)
    cost = visitation(jax.tree.map(lambda x: x[0], models), centre, known.start, known.discount)
    trust = {"none": None, "occupancy": Trust(0.3, cost), "pointwise": Trust(0.3, None)}[kind]
    found = certify(centre, models, known, trust, gap=5e-2, boxes=6000)

    def within(policies):
        moved = 0.5 * np.abs(policies - np.asarray(centre)).sum(-1)
        spent = {"none": 0 * moved[:, 0], "occupancy": moved @ np.asarray(cost), "pointwise": moved.max(axis=1)}[kind]
        return spent <= 0.3 + 1e-6

    tried = grid(states, actions, 20)
    assert found.bound >= values(tried[within(tried)], models, known).max() - 1e-6
    assert found.reached == pytest.approx(values(found.policy[None], models, known)[0])
    assert within(found.policy[None]).all()
    if actions == 2:  # in three dimensions as many boxes close the gap
        assert found.reached <= found.bound <= found.reached + 5.001e-2


def test_one_box_gives_every_model_a_policy_of_its_own():
    centre, models, known = problem(0)
    loose = certify(centre, models, known, None, boxes=1)
    corners = grid(3, 2, 1)
    own = [values(corners, jax.tree.map(lambda x, k=k: x[k : k + 1], models), known).max() for k in range(5)]
    assert loose.boxes == 1
    assert loose.bound == pytest.approx(np.mean(own), abs=1e-6)
    assert certify(centre, models, known, None, gap=5e-2).bound < loose.bound - 0.01


def test_a_policy_that_was_found_is_a_beginning():
    centre, models, known = problem(8)
    best = certify(centre, models, known, None, gap=5e-2).policy
    least = values(best[None], models, known)[0]
    assert certify(centre, models, known, None, boxes=1).reached < least - 0.01
    assert certify(centre, models, known, None, best, boxes=1).reached >= least - 1e-9
