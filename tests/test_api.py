"""The Python API of the contracts."""

import json
import sys
from itertools import pairwise

import gymnasium
import numpy as np
import pytest

import cdpo
from cdpo.cli import _run
from cdpo.errors import UserError
from cdpo.solvers.dyna import DynaSettings
from cdpo.training.settings import Settings


@pytest.fixture(scope="module")
def agent(tiny):
    return cdpo.CDPO("pendulum-swingup", seeds=2, horizon=20, **tiny).learn(episodes=2)


def plain(records):
    """What is written of episodes, less the time; as text, since what is no number does not equal itself."""
    kept = [{name: value for name, value in record.items() if name != "wall_s"} for record in records]
    return [json.dumps(dict(sorted(each.items()))).replace("NaN", "null") for each in kept]


def test_it_learns_predicts_and_evaluates(agent):
    assert agent.episodes == 3 and agent.seeds == [0, 1] and len(agent.records) == 6
    action, state = agent.predict(np.array([np.pi, 0.0]), deterministic=True)
    assert action.shape == (1,) and action.dtype == np.float32 and state is None
    again, _ = agent.predict(np.array([np.pi, 0.0]), deterministic=True)
    np.testing.assert_array_equal(action, again)
    batch, _ = agent[1].predict(np.zeros((4, 2)), deterministic=True)
    assert batch.shape == (4, 1) and np.abs(batch).max() <= 1
    assert agent.evaluate(episodes=2).shape == (2, 2)
    with pytest.raises(IndexError):
        agent[2]


def test_draws_differ_from_call_to_call(agent):
    draws = {float(agent.predict(np.zeros(2))[0][0]) for _ in range(5)}
    assert len(draws) == 5


def test_the_best_seed_by_evaluation_is_the_default(agent):
    last = {record["seed"]: record["eval_return"] for record in agent.records if record["episode"] == 2}
    assert last[agent.best.seed] == max(last.values())


def test_the_model_predicts_mean_and_spread(agent):
    mean, spread = agent.model.predict(np.array([np.pi, 0.0]), np.array([0.5]))
    assert mean.shape == spread.shape == (2,) and (spread > 0).all()
    means, _ = agent.model.predict(np.zeros((3, 2)), np.zeros((3, 1)))
    assert means.shape == (3, 2)
    with pytest.raises(UserError, match="observations of 2"):
        agent.model.predict(np.zeros(3), np.zeros(1))


def test_the_model_gives_intervals_of_any_level(agent):
    model, seen, done = agent.model, np.zeros((3, 2)), np.zeros((3, 1))
    mean, _ = model.predict(seen, done)
    ends = [model.interval(seen, done, level) for level in (0.2, 0.5, 0.9, 0.99)]
    for narrow, wide in pairwise(ends):
        assert (wide[0] <= narrow[0]).all() and (narrow[1] <= wide[1]).all() and (wide[0] < wide[1]).all()
    np.testing.assert_allclose((ends[0][0] + ends[0][1]) / 2, mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(model.interval(seen, done), ends[2])
    low, high = model.interval(seen[0], done[0])
    assert low.shape == high.shape == (2,)
    for level in (0, 1, 50, np.nan):
        with pytest.raises(UserError, match="level must be above 0 and below 1"):
            model.interval(seen, done, level)


def test_saved_and_loaded_it_goes_on_as_if_it_had_not_been(tmp_path, agent, tiny):
    agent.save(tmp_path / "kept")
    loaded = cdpo.load(tmp_path / "kept")
    assert plain(loaded.records) == plain(agent.records)
    one = cdpo.CDPO("pendulum-swingup", seeds=2, horizon=20, **tiny).learn(episodes=3)
    assert plain(loaded.learn(episodes=1).records) == plain(one.records)
    with pytest.raises(UserError, match="already exists"):
        agent.save(tmp_path / "kept")


def test_a_policy_alone_acts_and_does_not_learn(tmp_path, agent):
    agent.save(tmp_path / "small", policy_only=True)
    agent.save(tmp_path / "whole")
    seen = np.array([np.pi, 0.3])
    for loaded in (cdpo.load(tmp_path / "small"), cdpo.load(tmp_path / "whole", policy_only=True)):
        np.testing.assert_array_equal(
            loaded.predict(seen, deterministic=True)[0], agent.predict(seen, deterministic=True)[0]
        )
        assert loaded.best.seed == agent.best.seed
        with pytest.raises(UserError, match="only the policy"):
            loaded.learn(episodes=1)
        with pytest.raises(UserError, match="without a model"):
            _ = loaded.model


def test_the_policy_of_one_seed_is_an_agent_of_its_own(tmp_path, agent):
    agent[1].save(tmp_path / "one")
    loaded, seen = cdpo.load(tmp_path / "one"), np.array([np.pi, 0.3])
    assert loaded.seeds == [1]
    action, _ = loaded.predict(seen, deterministic=True)
    np.testing.assert_array_equal(action, agent[1].predict(seen, deterministic=True)[0])
    assert (action != agent[0].predict(seen, deterministic=True)[0]).any()
    np.testing.assert_array_equal(loaded.evaluate(2)[0], agent[1].evaluate(2))


def test_a_module_that_a_folder_names_is_imported_for_nobody_who_did_not_ask(
    tmp_path, agent, monkeypatch, capsys, edited
):
    path = agent.save(tmp_path / "kept", policy_only=True)
    word = "registers:cdpo/PendulumSwingup-v0"
    edited(path / "config.json", task=word)
    (tmp_path / "registers.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert _run(["evaluate", str(path)]) == 2
    assert "names 'registers', which is not imported" in capsys.readouterr().err
    assert "registers" not in sys.modules
    monkeypatch.setitem(sys.modules, "registers", None)  # to be forgotten again
    del sys.modules["registers"]
    assert _run(["evaluate", str(path), "--task", word, "--episodes", "1"]) == 0
    assert "registers" in sys.modules


def test_the_public_names_are_there_before_they_are_used():
    assert dir(cdpo) == sorted(cdpo.__all__)
    assert all(getattr(cdpo, name) is not None for name in cdpo.__all__)


@pytest.mark.slow
def test_an_environment_of_the_users_own_is_learned_with_its_reward(tmp_path, tiny):
    def make():
        return gymnasium.make("Pendulum-v1", max_episode_steps=15)

    agent = cdpo.PSRL(make, **tiny).learn(episodes=1)
    assert np.isfinite([record["return"] for record in agent.records]).all()
    agent.save(tmp_path / "own")
    with pytest.raises(UserError, match="task="):
        cdpo.load(tmp_path / "own")
    assert cdpo.load(tmp_path / "own", task=make).episodes == 2


@pytest.mark.slow
@pytest.mark.parametrize("learner", ["mpo", "ppo", "trpo", "actor-critic"])
def test_every_learner_goes_on_as_if_it_had_not_been_saved(tmp_path, tiny, tiny_learners, learner):
    common = {name: tiny[name] for name in ("models", "loop", "ensemble")}
    made = cdpo.CDPO("pendulum-swingup", horizon=20, learner=learner, **common, **tiny_learners[learner])
    made.learn(episodes=1).save(tmp_path / "kept")
    loaded = cdpo.load(tmp_path / "kept")
    assert loaded.settings.learner == learner
    assert plain(loaded.learn(episodes=1).records) == plain(made.learn(episodes=1).records)
    assert all(np.isfinite(made.records[-1][name]) for name in ("q_critic_loss", "pi_critic_loss", "kl_spent"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "solver"),
    [
        (cdpo.MBPO, "sac"),
        (cdpo.METRPO, "trpo"),
        (cdpo.SLBO, "trpo"),
        (cdpo.DPI, "mpc"),
    ],
)
def test_every_baseline_goes_on_as_if_it_had_not_been_saved(tmp_path, tiny, tiny_learners, tiny_mpc, kind, solver):
    common = {name: tiny[name] for name in ("models", "loop", "ensemble")}
    told = {"mpc": tiny_mpc} if solver == "mpc" else tiny_learners[solver]
    made = kind("pendulum-swingup", horizon=20, **common, **told)
    made.learn(episodes=1).save(tmp_path / "kept")
    loaded = cdpo.load(tmp_path / "kept")
    assert type(loaded) is kind and loaded.settings.to_json() == made.settings.to_json()
    assert plain(loaded.learn(episodes=1).records) == plain(made.learn(episodes=1).records)
    assert np.isfinite(made.records[-1]["pi_critic_loss"])


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: cdpo.CDPO("half-cheeta"), "did you mean 'half-cheetah'"),
        (lambda: cdpo.CDPO("CartPole-v1"), "Box"),
        (lambda: cdpo.CDPO("pusher", eta=0.2), "unknown setting of cdpo 'eta'"),
        (lambda: cdpo.CDPO("pusher", seeds=0), "at least 1"),
        (lambda: cdpo.CDPO("pusher", solver="bttp"), "unknown solver 'bttp'; did you mean 'bptt'"),
        (lambda: cdpo.CDPO("pusher", solver="bptt", bptt={"horizon": 0}), "bptt.horizon must be at least 1"),
        (lambda: cdpo.CDPO("pusher", learner="moo"), "unknown learner 'moo'; did you mean 'mpo'"),
        (lambda: cdpo.CDPO("pusher", learner=None), "learner must be a word, not None"),
        (lambda: cdpo.CDPO("pusher", solver=["dyna"]), "solver must be a word, not"),
        (lambda: cdpo.CDPO("pusher", solver="bptt", learner="mpo"), "makes no use of the settings of learner"),
        (lambda: cdpo.CDPO("pusher", learner="ppo", sac={"hidden": (3,)}), "makes no use of the settings of sac"),
        (lambda: cdpo.CDPO("pusher", learner="ppo", dyna={"real": 0.3}), "makes no use of dyna.real"),
        (lambda: cdpo.SAC("pusher", learner="ppo"), "sac makes no use of the settings of learner"),
        (lambda: cdpo.MBPO("pusher", solver="bptt"), "mbpo makes no use of the settings of solver"),
        (lambda: cdpo.MBPO("pusher", models=9), "mbpo.models must not be above ensemble.heads, 7"),
        (lambda: cdpo.METRPO("pusher", sac={"hidden": (3,)}), "me-trpo makes no use of the settings of sac"),
        (lambda: cdpo.METRPO("pusher", dyna={"real": 0.3}), "me-trpo makes no use of dyna.real"),
        (lambda: cdpo.CDPO("pusher", settings=Settings()), "unknown setting of cdpo 'settings'"),
        (lambda: cdpo.CDPO("pusher", kl=float("inf")), "cdpo.kl must be a finite number, not inf"),
        (lambda: cdpo.CDPO("pusher", loop=3), "loop must be a dict or LoopSettings, not 3"),
        (lambda: cdpo.CDPO("pusher", learner="ppo", dyna=DynaSettings(updates=7)), "makes no use of dyna.updates"),
        (lambda: cdpo.CDPO("pusher").planner(), "no model was fitted yet"),
        (lambda: cdpo.CDPO("pusher").model, "no model was fitted yet"),
        (lambda: cdpo.CDPO("pusher", loop={"random": 3}).learn(2), "episodes must be at least loop.random, 3, not 2"),
        (lambda: cdpo.SAC("pusher").planner(), "sac learns without a model"),
        (lambda: cdpo.CDPO("pusher", preset="papers"), "did you mean 'paper'"),
        (lambda: cdpo.load("nowhere"), "no such folder"),
    ],
)
def test_a_mistake_is_told_in_one_line(call, word):
    with pytest.raises(UserError) as told:
        call()
    assert word in str(told.value) and "\n" not in str(told.value)


def test_importing_the_library_does_not_wait_for_jax():
    import subprocess
    import sys

    code = "import cdpo, sys, gymnasium; gymnasium.make('cdpo/PendulumSwingup-v0'); print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr
