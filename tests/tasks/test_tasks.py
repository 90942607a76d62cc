"""The tasks: the environments, and that what the agent believes of them is true."""

import subprocess
import sys
import warnings

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from cdpo.errors import UserError
from cdpo.tasks import TASKS, compat, pendulum_step
from cdpo.tasks.base import identity
from cdpo.tasks.physics import CartpoleSwingup
from cdpo.tasks.registration import IDS

GAIN = (0.1, 4.0, 0.2, 0.8)  # balances the inverted pendulum
MUJOCO = ["inverted-pendulum", "cartpole-swingup", "pusher", "half-cheetah"]


def run(code, folder, **more):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=folder, capture_output=True, text=True, check=False, **more
    )


def gymnasiums(id, **settings):
    """Gymnasium's own environment, without its notice of deprecation."""
    with compat.without_deprecations():
        return gymnasium.make(id, disable_env_checker=True, **settings).unwrapped


# --- what a task says


def test_sizes_bounds_and_horizon_are_the_environments(task):
    env = task.make()
    assert env.observation_space.shape == (task.observations,)
    assert env.action_space.shape == (task.actions,)
    np.testing.assert_array_equal(env.action_space.low, task.low)
    np.testing.assert_array_equal(env.action_space.high, task.high)
    assert task.low.dtype == task.high.dtype == np.float32
    assert env.spec.max_episode_steps == task.horizon
    env.close()


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("inverted-pendulum", (4, 1, 3, 200)),
        ("cartpole-swingup", (4, 1, 3, 200)),
        ("pendulum-swingup", (2, 1, 1, 400)),
        ("pusher", (23, 7, 2, 150)),
        ("half-cheetah", (18, 6, 1, 1000)),
    ],
)
def test_the_papers_table(name, sizes):
    task = TASKS[name]
    assert (task.observations, task.actions, task.high[0], task.horizon) == sizes


def test_a_broad_box_holds_states_that_are_no_end(task):
    if task.broad is None:
        assert task.name in ("pusher", "half-cheetah")
        return
    low, high = task.broad
    assert low.shape == high.shape == (task.observations,)
    states = np.random.default_rng(0).uniform(low, high, (100, task.observations)).astype(np.float32)
    assert not np.any(jax.jit(task.terminates)(states, np.zeros((100, task.actions)), states))


# --- the environments


def test_passes_gymnasiums_checker(task):
    with warnings.catch_warnings():
        # Advice on taste: spaces without bounds, actions not in [-1, 1]
        warnings.filterwarnings("ignore", message=".*(infinity|symmetric and normalized|not recommended).*")
        check_env(task.make().unwrapped, skip_render_check=True)


def test_every_id_is_registered_and_made_by_name():
    for id in IDS:
        gymnasium.make(id).close()
    penalised = gymnasium.make("cdpo/PendulumSwingup-v0", penalty=0.3)
    penalised.reset()
    assert penalised.step(np.ones(1, np.float32))[1] == pytest.approx(-0.3)


def test_a_seed_fixes_the_episode_and_another_seed_changes_it(task):
    env, other = task.make(), task.make()
    actions = np.random.default_rng(1).uniform(task.low, task.high, (20, task.actions)).astype(np.float32)

    def episode(env, seed):
        return np.stack([env.reset(seed=seed)[0], *(env.step(action)[0] for action in actions)])

    first = episode(env, 3)
    episode(env, 4)
    np.testing.assert_array_equal(first, episode(env, 3))
    np.testing.assert_array_equal(first, episode(other, 3))
    if not task.name.startswith("pendulum"):
        assert not np.array_equal(first[0], env.reset(seed=4)[0])


def test_the_time_limit_truncates_and_does_not_terminate(task):
    env = task.make()
    observation, _ = env.reset(seed=0)
    gain = np.zeros((task.actions, task.observations))
    if task.name == "inverted-pendulum":
        gain[0] = GAIN  # it ends early unless it is balanced
    for step in range(1, task.horizon + 1):
        observation, _, terminated, truncated, _ = env.step((gain @ observation).astype(np.float32))
        assert not terminated
        assert truncated == (step == task.horizon)


def test_an_action_of_the_wrong_shape_is_refused():
    env = TASKS["half-cheetah"].make()
    env.reset(seed=0)
    with pytest.raises(ValueError, match="shape"):
        env.step(np.zeros(1))


def test_observations_are_not_overwritten_by_later_steps(task):
    env = task.make()
    first, _ = env.reset(seed=0)
    kept = first.copy()
    second, *_ = env.step(task.high)
    kept_second = second.copy()
    env.step(task.low)
    np.testing.assert_array_equal(first, kept)
    np.testing.assert_array_equal(second, kept_second)


# --- what the agent knows of them


def test_the_reward_is_the_environments_on_real_transitions(task, transitions):
    known = jax.jit(task.reward)(*(each.astype(np.float32) for each in transitions[:3]))
    assert known.shape == transitions.reward.shape
    np.testing.assert_allclose(known, transitions.reward, atol=2e-5, rtol=2e-6)


def test_the_termination_is_the_environments_on_real_transitions(task, transitions):
    known = jax.jit(task.terminates)(*(each.astype(np.float32) for each in transitions[:3]))
    assert known.dtype == bool
    np.testing.assert_array_equal(known, transitions.terminated)
    assert transitions.terminated.any() == (task.name == "inverted-pendulum")


def test_the_transitions_exercise_the_reward(transitions):
    assert np.ptp(transitions.reward) > 0.05


def test_reward_and_features_are_differentiable_everywhere(task, transitions):
    real = [each.astype(np.float32) for each in transitions[:3]]
    zeros = [np.zeros_like(each[:1]) for each in real]  # where a plain norm has no gradient
    arguments = [np.concatenate(pair) for pair in zip(real, zeros, strict=True)]
    gradients = jax.jit(jax.grad(lambda *a: task.reward(*a).sum(), argnums=(0, 1, 2)))(*arguments)
    assert all(np.isfinite(each).all() for each in gradients)
    assert any(np.any(each != 0) for each in gradients)
    assert np.isfinite(jax.jit(jax.grad(lambda s: task.features(s).sum()))(arguments[2])).all()


def test_functions_broadcast_over_leading_axes(task, transitions):
    s, a, following = (each[:6].astype(np.float32) for each in transitions[:3])
    for function in (jax.jit(task.reward), jax.jit(task.terminates)):
        flat = function(s, a, following)
        folded = function(*(each.reshape(2, 3, -1) for each in (s, a, following)))
        np.testing.assert_allclose(np.ravel(folded), flat, rtol=1e-6)
        np.testing.assert_allclose(function(s[0], a[0], following[0]), np.asarray(flat)[0], rtol=1e-6)
        assert function(s, a[0], following).shape == (6,)
    assert jax.eval_shape(task.features, s.reshape(2, 3, -1)).shape[:2] == (2, 3)


def test_features_hide_turns_and_nothing_else():
    for name, angle in (("pendulum-swingup", 0), ("cartpole-swingup", 1)):
        features, size = TASKS[name].features, TASKS[name].observations
        state = jnp.linspace(0.3, 0.9, size)
        assert features(state).shape == (size + 1,)
        np.testing.assert_allclose(features(state.at[angle].add(2 * np.pi)), features(state), atol=1e-5)
        assert np.abs(features(state.at[angle].add(np.pi)) - features(state)).max() > 0.5
    assert TASKS["half-cheetah"].features is identity


# --- each task's own promises


def test_pendulum_starts_hanging_at_rest_and_jax_knows_its_dynamics():
    rng = np.random.default_rng(0)
    env = TASKS["pendulum-swingup"].make().unwrapped
    observation, _ = env.reset()
    np.testing.assert_array_equal(observation, [np.pi, 0])
    states = rng.uniform([-10, -10], [10, 10], (50, 2))
    actions = rng.uniform(-1.5, 1.5, (50, 1)).astype(np.float32)  # beyond the bounds, where both clip
    real = []
    for state, action in zip(states, actions, strict=True):
        env.set_state(*state)
        real.append(env.step(action)[0])
    known = pendulum_step(jnp.asarray(states, jnp.float32), jnp.asarray(actions))
    np.testing.assert_allclose(known, np.stack(real), atol=3e-6)


def test_pendulum_follows_its_equation_of_motion():
    """Against theta'' = (g/l) sin(theta) + u/(m l^2) - b/(m l^2) theta', solved finely."""
    env = TASKS["pendulum-swingup"].make().unwrapped
    state = np.array([2.0, 1.0])
    env.set_state(*state)
    for k in range(40):
        u = np.float32(np.sin(k))
        observation, *_ = env.step(np.array([u]))
        for _ in range(1000):
            slope = 9.81 / 0.5 * np.sin(state[0]) + (u - 0.005 * state[1]) / (0.3 * 0.5**2)
            state = state + np.array([state[1], slope]) / 80_000
    np.testing.assert_allclose(observation, state, atol=0.05)


def test_pendulum_pays_upright_and_penalises_effort():
    for penalty, name in ((0, "pendulum-swingup"), (0.1, "pendulum-swingup-0.1"), (0.2, "pendulum-swingup-0.2")):
        env = TASKS[name].make().unwrapped
        env.set_state(0, 0)
        assert env.step(np.zeros(1, np.float32))[1] == pytest.approx(1)
        env.reset()
        assert env.step(np.float32([0.2]))[1] == pytest.approx(-0.9 * penalty, abs=1e-6)  # one margin outside


def test_inverted_pendulum_pays_for_balance_and_ends_beyond_it():
    env = TASKS["inverted-pendulum"].make().unwrapped
    env.reset(seed=0)
    _, reward, terminated, *_ = env.step(np.float32([2]))
    assert (reward, terminated) == (pytest.approx(1 - 0.004), False)
    env.set_state(np.array([0, 0.3]), np.zeros(2))
    _, reward, terminated, *_ = env.step(np.float32([2]))
    assert (reward, terminated) == (pytest.approx(-0.004), True)


def test_cartpole_hangs_turns_freely_and_pays_for_the_tip():
    env = TASKS["cartpole-swingup"].make().unwrapped
    observation, _ = env.reset(seed=0)
    np.testing.assert_allclose(observation, [0, np.pi, 0, 0], atol=0.01)
    env.set_state(np.zeros(2), np.array([0, 30.0]))
    turned = max(env.step(np.zeros(1, np.float32))[0][1] for _ in range(25))
    assert turned > np.pi  # over the top: the original hinge stops at a right angle
    env.set_state(np.zeros(2), np.zeros(2))
    assert env.step(np.zeros(1, np.float32))[1] == pytest.approx(1, abs=1e-3)


def test_cartpoles_pole_is_as_long_as_the_models():
    env = TASKS["cartpole-swingup"].make().unwrapped
    env.set_state(np.array([0.3, 1.0]), np.zeros(2))
    middle = env.data.geom("cpole").xpos - env.data.body("pole").xpos
    np.testing.assert_allclose(2 * np.hypot(middle[0], middle[2]), CartpoleSwingup.length, atol=1e-4)
    np.testing.assert_allclose(2 * middle[[0, 2]], 0.6 * np.array([np.sin(1), np.cos(1)]), atol=2e-3)


def test_half_cheetah_observes_its_velocity_over_the_step_and_not_its_place():
    env = TASKS["half-cheetah"].make().unwrapped
    observation, _ = env.reset(seed=0)
    assert observation[0] == 0
    assert env.data.qpos[0] == 0
    random = np.random.default_rng(0)
    for _ in range(20):
        before = env.data.qpos[0]
        action = random.uniform(-1, 1, 6).astype(np.float32)
        observation, reward, *_ = env.step(action)
        forward = (env.data.qpos[0] - before) / env.dt
        assert observation[0] == pytest.approx(forward)
        np.testing.assert_array_equal(observation[1:9], env.data.qpos[1:])
        np.testing.assert_array_equal(observation[9:], env.data.qvel)
        assert reward == pytest.approx(forward - 0.1 * np.sum(action.astype(float) ** 2))
    assert env.dt == pytest.approx(0.05)


def test_pusher_resets_its_object_away_from_a_fixed_goal():
    env = TASKS["pusher"].make()
    first = np.stack([env.reset(seed=seed)[0] for seed in range(200)])
    thing, goal = first[:, 17:20], first[:, 20:23]
    assert np.ptp(goal, axis=0).max() == 0
    offset = (thing - goal)[:, [1, 0]]  # the model's first slide points along the world's y
    assert (np.hypot(*offset.T) > 0.17).all()
    assert (offset > [-0.3, -0.2]).all()
    assert (offset < [0, 0.2]).all()
    assert (np.ptp(offset, axis=0) > [0.25, 0.35]).all()


@pytest.mark.parametrize(
    ("name", "id", "skip"),
    [
        ("half-cheetah", "HalfCheetah-v5", 1),
        ("pusher", "Pusher-v5", 0),
        ("inverted-pendulum", "InvertedPendulum-v5", 0),
    ],
)
def test_the_physics_are_gymnasiums(name, id, skip):
    task = TASKS[name]
    ours, theirs = task.make().unwrapped, gymnasiums(id)
    actions = np.random.default_rng(0).uniform(task.low, task.high, (30, task.actions)).astype(np.float32)
    np.testing.assert_array_equal(ours.reset(seed=5)[0][skip:], theirs.reset(seed=5)[0])
    theirs.set_state(ours.data.qpos, ours.data.qvel)  # Gymnasium's half-cheetah draws a place, ours is at 0
    for action in actions:
        np.testing.assert_array_equal(ours.step(action)[0][skip:], theirs.step(action)[0])


# --- guests behave


@pytest.mark.parametrize("id", ["half-cheetah", "HalfCheetah-v5"])
def test_half_cheetah_leaves_no_log_and_prints_nothing(id, tmp_path):
    code = f"import cdpo.tasks\nenv = cdpo.tasks.find_task({id!r}).make()\nenv.reset(seed=0)\nenv.step([0] * 6)"
    done = run(code, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def test_mujocos_warning_handler_is_given_back():
    import mujoco

    before = mujoco.get_mju_user_warning()
    with compat.without_deprecations():
        assert mujoco.get_mju_user_warning() is not None
    assert mujoco.get_mju_user_warning() is before


def test_importing_the_tasks_imports_neither_mujoco_nor_jax(tmp_path):
    code = """
import sys, cdpo.tasks, gymnasium
assert "cdpo/HalfCheetah-v0" in gymnasium.registry
assert not {"jax", "mujoco"} & set(sys.modules)
gymnasium.make("cdpo/PendulumSwingup-v0").reset(seed=0)
gymnasium.make("cdpo/LQR-v0").reset(seed=0)
gymnasium.make("cdpo/HalfCheetah-v0").reset(seed=0)
assert "jax" not in sys.modules
"""
    done = run(code, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_id_that_names_the_module_needs_no_import(tmp_path):
    done = run("import gymnasium\ngymnasium.make('cdpo.tasks:cdpo/PendulumSwingup-v0').reset(seed=0)", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_looking_at_the_tasks_imports_no_mujoco(tmp_path):
    done = run("import sys\nfrom cdpo.tasks import TASKS\nassert 'mujoco' not in sys.modules", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


# --- pictures


def test_the_pendulum_draws_itself():
    env = TASKS["pendulum-swingup"].make(render_mode="rgb_array")
    env.reset(seed=0)
    picture = env.render()
    assert picture.shape == (240, 240, 3)
    assert picture.dtype == np.uint8
    dark = np.argwhere(picture.sum(-1) < 400)
    assert dark.mean(axis=0)[0] > 130  # hangs: lower rows
    env.unwrapped.set_state(np.pi / 2, 0)
    dark = np.argwhere(env.render().sum(-1) < 400)
    assert dark.mean(axis=0)[1] > 130  # to the right


@pytest.mark.parametrize("name", MUJOCO)
def test_mujoco_draws(name):
    env = TASKS[name].make(render_mode="rgb_array")
    env.reset(seed=0)
    try:
        picture = env.render()
    except UserError as error:
        pytest.skip(f"no OpenGL: {error}")
    assert picture.shape == (480, 480, 3)
    assert picture.dtype == np.uint8
    assert picture.std() > 1
    env.step(env.action_space.high)
    assert not np.array_equal(env.render(), picture)
    env.close()


def test_without_a_display_egl_is_chosen_and_a_choice_is_kept(monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    compat.choose_gl()
    assert compat.os.environ["MUJOCO_GL"] == "egl"
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    compat.choose_gl()
    assert compat.os.environ["MUJOCO_GL"] == "osmesa"
    monkeypatch.delenv("MUJOCO_GL")
    monkeypatch.setenv("DISPLAY", ":0")
    compat.choose_gl()
    assert "MUJOCO_GL" not in compat.os.environ
