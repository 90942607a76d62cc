"""What every solver promises, whichever it is and whatever learns inside it."""

from typing import get_args, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cdpo.dynamics.models import reference_model, sampled_models
from cdpo.solvers.actor_critic import ActorCritic, ActorCriticSettings
from cdpo.solvers.base import Objective, Trust
from cdpo.solvers.bptt import BPTT, BPTTSettings
from cdpo.solvers.dyna import Dyna, DynaSettings
from cdpo.solvers.mpc import MPC, MPCSettings
from cdpo.solvers.mpo import MPO, MPOSettings
from cdpo.solvers.ppo import PPO, PPOSettings
from cdpo.solvers.sac import SAC, SACSettings
from cdpo.solvers.trpo import TRPO, TRPOSettings
from cdpo.training.settings import LEARNERS, Settings

KEY = jax.random.key(0)
BOUND = 1e-3
UNSEEN = jnp.linspace(-1, 1, 301)[:, None]  # states of the trust region that no update was given
RATE = 0.03  # of multipliers
NET = {"hidden": (8,), "learning_rate": 0.05, "multiplier_rate": RATE}
DYNA = DynaSettings(rounds=3, kept=2, updates=2, particles=4, horizon=3, returns=2, batch=8, real=0.25)
ROLLED = {"horizon": 3, "particles": 4, "updates": 6, **NET}
PLANNED = {"horizon": 3, "imitated": 2, "plans": 4, "rounds": 2, "updates": 4, "batch": 8, "particles": 2, **NET}
ACTIONS = {"moves": "actions", "colour": 2.0, "method": "mppi", "steps": 2}
KINDS = {
    "dyna, sac": Dyna(DYNA, SAC(SACSettings(**NET))),
    "dyna, mpo": Dyna(DYNA, MPO(MPOSettings(period=5, deviation_kl=0.03, mean_kl=0.1, **NET))),
    "dyna, ppo": Dyna(DYNA, PPO(PPOSettings(minibatches=5, **NET))),
    "dyna, trpo": Dyna(DYNA, TRPO(TRPOSettings(kl=0.03, **NET))),
    "dyna, actor-critic": Dyna(DYNA, ActorCritic(ActorCriticSettings(**NET))),
    "bptt, maac": BPTT(BPTTSettings(**ROLLED)),
    "bptt, svg": BPTT(BPTTSettings(kind="svg", **ROLLED)),
    "mpc, POPLIN-P": MPC(MPCSettings(**PLANNED)),
    "mpc, POPLIN-P, averaged": MPC(MPCSettings(distils="averaging", reach=0.5, **PLANNED)),
    "mpc, POPLIN-A, coloured, MPPI, replanned": MPC(MPCSettings(**PLANNED | ACTIONS)),
    "mpc, POPLIN-A without values": MPC(MPCSettings(moves="actions", value=False, **PLANNED)),
}
STEPS = {  # of the policy in an update
    "dyna, sac": 3 * 2,
    "dyna, mpo": 3 * 2,
    "dyna, ppo": 3 * 4 * 5,
    "dyna, trpo": 3,
    "dyna, actor-critic": 3 * 12,  # each of so many rows by itself
    "bptt": 6,
    "mpc": 2 * 4,
}
QUICK = ("dyna, sac",)


def steered(observation, action, following):
    """Best at zero, and with no more effort than needed."""
    return -(following[..., 0] ** 2) - 0.1 * action[..., 0] ** 2


def test_these_are_all():
    assert {name.split(",")[0] for name in KINDS} == set(get_args(get_type_hints(Settings)["solver"]))
    assert {name.split(", ")[1] for name in KINDS if name.startswith("dyna")} == set(LEARNERS)


@pytest.fixture(
    scope="module", params=[name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in KINDS]
)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def solved(name, linear_task, linear_belief, some_policy, starts_at):
    """A function of the models, the trust region and a key; and how often it was compiled."""
    solver, task = KINDS[name], linear_task(steered)
    belief = linear_belief(task, [[[-0.1], [0.1]], [[-0.1], [0.2]], [[-0.2], [0.1]]])
    policy, starts = some_policy(task), starts_at([[1.0], [-1.0]], weights=(1.0, 1.0, 1.0))
    compiled = []

    @jax.jit
    def solve(models, trust, key):
        compiled.append(True)
        state = solver.begin(policy, models.count, jax.random.key(1))
        return solver(policy, models, Objective(0.9, trust), starts=starts, state=state, key=key)

    return solve, policy, belief, compiled


def test_a_trust_region_on_or_off_is_the_same_program_and_its_bound_holds_at_the_end(solved, around):
    solve, policy, belief, compiled = solved
    models = sampled_models(belief, 2, "subset", KEY)
    off, tight = around(policy, BOUND, active=False), around(policy, BOUND)
    (free, _, loose), (bound, state, held) = (solve(models, trust, KEY) for trust in (off, tight))
    assert len(compiled) == 1
    assert off.spent(free, off.checked) > BOUND
    assert (loose["kept"], loose["multiplier"]) == (1, 0)
    assert tight.spent(bound, tight.checked) <= BOUND
    assert tight.spent(bound, UNSEEN) <= 1.1 * BOUND < off.spent(free, UNSEEN)
    assert held["kept"] < 1 and held["multiplier"] > 0
    for tree in (free, bound, state, loose, held):
        assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(tree))


def test_the_multiplier_follows_the_excess_by_its_rate_at_every_step_of_the_policy(solved, name, some_policy, around):
    solve, policy, belief, _ = solved
    models, centre = sampled_models(belief, 2, "subset", KEY), some_policy(policy.task, seed=1)
    steps = STEPS.get(name) or STEPS[name.split(",")[0]]
    for bound, excess in ((1e-6, 1), (1e6, -1)):  # far outside, and well inside
        _, state, _ = solve(models, around(centre, bound), KEY)
        state = getattr(state, "learner", state)  # Dyna leaves the multiplier to its learner
        assert state.log_multiplier == pytest.approx(excess * steps * RATE, rel=1e-3)  # zero at the beginning


def test_on_the_reference_alone_and_unbounded_the_conservative_update_is_the_referential_one(solved, around):
    solve, policy, belief, compiled = solved
    reference = reference_model(belief, 2, heads=1)
    referential = solve(reference, Trust.off(policy, 32), KEY)
    conservative = solve(reference, around(policy, 0.1, active=False), KEY)
    jax.tree.map(np.testing.assert_array_equal, referential, conservative)
    assert len(compiled) == 1
    other = solve(reference, Trust.off(policy, 32), jax.random.key(1))
    assert np.any(np.asarray(other[0].net.weights[0] != referential[0].net.weights[0]))


def test_no_constraint_needs_no_states(solved):
    solve, policy, belief, _ = solved
    reference = reference_model(belief, 2, heads=1)
    (bare, _, told), (padded, _, also) = (solve(reference, Trust.off(policy, states), KEY) for states in (0, 32))
    jax.tree.map(lambda *leaves: np.testing.assert_allclose(*leaves, rtol=1e-3, atol=1e-5), bare, padded)
    assert (told["kept"], told["multiplier"]) == (also["kept"], also["multiplier"]) == (1, 0)
