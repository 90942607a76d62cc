"""PPO and the actor-critic, held against sums and gradients by hand."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdpo.dynamics.replay import Transition
from cdpo.solvers.actor_critic import ActorCritic, ActorCriticSettings
from cdpo.solvers.base import Objective, Trust
from cdpo.solvers.critics import state_values
from cdpo.solvers.onpolicy import Judged
from cdpo.solvers.policy import Gaussian, log_density, squashed, unsquashed
from cdpo.solvers.ppo import PPO, PPOSettings

KEY = jax.random.key(0)
H, M, P, DISCOUNT = 5, 2, 3, 0.9
PLAIN = {"hidden": (4,), "learning_rate": 1e-2, "trace": 0.7}


def free(observation, action, following):
    return jnp.zeros(observation.shape[:-1])


@pytest.fixture(scope="module")
def policy(linear_task, some_policy):
    return some_policy(linear_task(free))


def some_rollouts(policy, seed=0, ending=0.3):
    rng = np.random.default_rng(seed)
    draw = lambda *tail: jnp.asarray(rng.normal(size=(H, M, P, *tail)), jnp.float32)  # noqa: E731
    ended = jnp.asarray(rng.random((H, M, P)) < ending, jnp.float32)
    seen, following = draw(1), draw(1)
    goes_on = jnp.where(ended[:-1, ..., None] > 0, following[:-1], seen[1:])
    return Transition(seen, jnp.tanh(draw(1)), 3 * draw(), jnp.concatenate([goes_on, following[-1:]]), ended)


def learned(learner, policy, taken, trust=None, state=None):
    state = learner.begin(policy, M, KEY) if state is None else state
    objective = Objective(DISCOUNT, Trust.off(policy, 4) if trust is None else trust)
    return jax.jit(lambda state, taken: learner.learn(policy, state, taken, objective, KEY))(state, taken)


# --- densities


@settings(derandomize=True, max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), mean=st.floats(-2.5, 2.5), log=st.floats(-4.0, 0.0))
def test_the_density_of_an_action_is_that_of_its_draw_but_for_the_squashing(seed, mean, log):
    before = Gaussian(jnp.full((4, 2), mean), jnp.full((4, 2), log))
    action, density = squashed(before, jax.random.key(seed), 2)
    raw = unsquashed(action)
    squash = jnp.sum(jnp.log1p(-(jnp.minimum(jnp.abs(action), 1 - 1e-6) ** 2)), axis=-1)
    deep = np.any(np.abs(np.asarray(raw)) > 4, axis=-1)  # there single precision has lost the digits
    seen, expected = np.asarray(log_density(before, raw)), np.asarray(density + squash)
    np.testing.assert_allclose(seen[~deep], expected[~deep], rtol=2e-2, atol=2e-2)


def test_actions_at_the_bound_have_a_density():
    before = Gaussian(jnp.zeros((2, 1)), jnp.zeros((2, 1)))
    assert np.all(np.isfinite(log_density(before, unsquashed(jnp.array([[1.0], [-1.0]])))))


# --- advantages


@pytest.mark.parametrize("critic", ["per-model", "pooled"])
def test_advantages_are_those_of_gae_along_each_rollout(policy, critic):
    learner = PPO(PPOSettings(**PLAIN, critic=critic))
    state = learner.begin(policy, M, KEY)._replace(scale=jnp.asarray(2.0))
    taken = some_rollouts(policy)
    after, judged = learner._judged(policy, state, taken, DISCOUNT)

    def said(places):
        shape = (H, 1, M * P, 1) if critic == "pooled" else (H, M, P, 1)
        return np.asarray(state_values(state.critics, policy, places.reshape(shape))).reshape(H, M, P)

    here, there = said(taken.observation), said(taken.next)
    goes_on = 1 - np.asarray(taken.terminated)
    delta = np.asarray(taken.reward) / 2 + DISCOUNT * goes_on * there - here
    advantage = np.zeros((H, M, P))
    last = np.zeros((M, P))
    for t in reversed(range(H)):
        last = delta[t] + DISCOUNT * 0.7 * goes_on[t] * last
        advantage[t] = last
    np.testing.assert_allclose(judged.returns.reshape(H, M, P), advantage + here, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(judged.advantage.reshape(H, M, P), advantage, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(after.rewards, [np.min(taken.reward), np.max(taken.reward)])


def test_what_follows_is_worth_no_more_than_rewards_can_add_up_to(policy):
    learner = PPO(PPOSettings(**PLAIN))
    state = learner.begin(policy, M, KEY)
    wild = eqx.tree_at(lambda c: c.biases[-1], state.critics, jnp.full((M, 1), 1e6))
    taken = some_rollouts(policy, ending=0.0)
    _, judged = learner._judged(policy, state._replace(critics=wild), taken, DISCOUNT)
    assert np.max(judged.returns) <= float(np.max(taken.reward)) / (1 - DISCOUNT) * 1.001


# --- gradients


ONCE = {**PLAIN, "epochs": 1, "minibatches": 1}


def moment(state):
    [adam] = optax.tree.get_all_with_path(state.policy_optimiser, "mu")
    return jax.tree.map(lambda leaf: np.asarray(leaf) / 0.1, adam[1])  # Adam's after one step


@pytest.mark.parametrize(
    "learner",
    [
        ActorCritic(ActorCriticSettings(**PLAIN, minibatches=1)),
        ActorCritic(ActorCriticSettings(**PLAIN, minibatches=1, noise="learned")),
        PPO(PPOSettings(**ONCE)),
        PPO(PPOSettings(**ONCE, noise="learned")),
    ],
    ids=["actor-critic", "actor-critic, learned noise", "ppo", "ppo, learned noise"],
)
def test_the_first_step_is_that_of_reinforce_with_a_baseline(policy, learner):
    taken = some_rollouts(policy)
    _, judged = learner._judged(policy, learner.begin(policy, M, KEY), taken, DISCOUNT)
    advantage = (judged.advantage - jnp.mean(judged.advantage)) / jnp.std(judged.advantage)
    restraint = 0.0 if isinstance(learner, PPO) else learner.settings.restraint

    def loss(net):
        acting = eqx.tree_at(lambda p: p.net, policy, net)(taken.observation)
        far = restraint * jnp.mean(acting.mean**2)
        if learner.settings.noise == "learned":
            return far - jnp.mean(advantage * log_density(acting, jnp.arctanh(taken.action)))
        still = acting._replace(log_deviation=policy(taken.observation).log_deviation)  # noise is held, not optimised
        gain = jnp.mean(advantage * log_density(still, jnp.arctanh(taken.action)))
        return far + jnp.mean((acting.log_deviation - jnp.log(0.2)) ** 2) - gain

    _, after, _ = learned(learner, policy, taken)
    expected = jax.grad(loss)(policy.net)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-2, atol=2e-3), moment(after), expected)


def test_a_gradient_is_no_longer_than_told(policy):
    taken = some_rollouts(policy)
    (_, free, _), (_, short, _) = (learned(PPO(PPOSettings(**ONCE, gradient=g)), policy, taken) for g in (None, 0.01))
    length = float(optax.tree.norm(moment(free)))
    assert length > 0.01
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b * 0.01 / length, rtol=1e-3, atol=1e-6), moment(short), moment(free)
    )


def test_beyond_the_clip_an_action_gains_nothing_more(policy):
    taken, far = some_rollouts(policy), {**PLAIN, "learning_rate": 0.05, "epochs": 20, "minibatches": 1}

    @jax.jit
    def learned(settings):  # numbers are values: one program for both
        learner = PPO(settings)
        objective = Objective(DISCOUNT, Trust.off(policy, 4))
        return learner.learn(policy, learner.begin(policy, M, KEY), taken, objective, KEY)

    def gain(acting):
        """Of the ratio, where nothing clips it."""
        _, judged = PPO(PPOSettings(**far))._judged(policy, learner_state, taken, DISCOUNT)
        ratio = jnp.exp(log_density(acting(taken.observation), judged.raw) - judged.density)
        return float(jnp.mean(ratio * judged.advantage))

    learner_state = PPO(PPOSettings(**far)).begin(policy, M, KEY)
    (near, _, held), (wide, _, loose) = (learned(PPOSettings(**far, clip=clip)) for clip in (1e-3, 1e3))
    assert held["clipped"] > 0.5 and loose["clipped"] == 0
    assert gain(near) < 0.5 * gain(wide)


class Asked(PPO):
    """Says what it would descend, and takes no step."""

    def _passed(self, policy, state, judged, objective, key, loss):
        return loss(judged, policy(judged.observation))[0]


def test_the_gain_is_the_lesser_of_the_one_with_and_without_the_clip(policy):
    ppo, ratio, advantage = (
        Asked(PPOSettings(**PLAIN, clip=0.2)),
        jnp.array([2.0, 2, 0.5, 0.5]),
        jnp.array([1.0, -1, 1, -1]),
    )
    seen = raw = jnp.linspace(-1, 1, 4)[:, None]
    density = log_density(policy(seen), raw) - jnp.log(ratio)
    lost = ppo._improved(policy, None, Judged(seen, raw, density, advantage, advantage), None, KEY)
    assert lost == pytest.approx(-np.mean([1.2, -2.0, 0.5, -0.8]), rel=1e-4)


@pytest.mark.parametrize(("epochs", "minibatches", "steps"), [(3, 4, 12), (2, 1, 2), (1, 1000, H * P)])
def test_every_epoch_goes_through_all_minibatches(policy, epochs, minibatches, steps):
    learner = PPO(PPOSettings(**PLAIN, epochs=epochs, minibatches=minibatches))
    _, after, _ = learned(learner, policy, some_rollouts(policy))
    assert (after.policy_optimiser[0].count, after.critic_optimiser[0].count) == (steps, steps)


def test_the_actor_critic_goes_through_all_minibatches_once(policy):
    learner = ActorCritic(ActorCriticSettings(**PLAIN, minibatches=3))
    _, after, metrics = learned(learner, policy, some_rollouts(policy))
    assert (after.policy_optimiser[0].count, after.critic_optimiser[0].count) == (3, 3)
    assert set(metrics) == {"critic_loss", "value", "log_deviation", "multiplier"}


@pytest.mark.slow
def test_a_critic_learns_from_its_own_models_rollouts_only(policy):
    learner = ActorCritic(ActorCriticSettings(**PLAIN))
    first, second = some_rollouts(policy, 0), some_rollouts(policy, 1)
    mixed = jax.tree.map(lambda a, b: jnp.stack([a[:, 0], b[:, 1]], axis=1), first, second)
    here, there = (learned(learner, policy, taken)[1].critics.weights[0] for taken in (first, mixed))
    np.testing.assert_array_equal(here[0], there[0])
    assert np.any(np.asarray(here[1] != there[1]))
