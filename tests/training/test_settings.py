"""Settings: what is not known is an error, and what was told can be read again."""

import json

import numpy as np
import pytest

from cdpo.agents import CDPO, RULES
from cdpo.errors import UserError
from cdpo.solvers.dyna import DynaSettings
from cdpo.tasks import TASKS, find_task
from cdpo.training.presets import PRESETS, preset
from cdpo.training.settings import LEARNERS, Settings, part_of


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("task", ["half-cheetah", "pendulum-swingup", "pusher"])
def test_settings_survive_json(rule, name, task):
    settings = preset(name, TASKS[task], rule)
    for solver, learner in (("bptt", "sac"), ("mpc", "sac"), *(("dyna", each) for each in LEARNERS)):
        settings = settings.changed(solver=solver, learner=learner)
        again = Settings.from_json(json.loads(json.dumps(settings.to_json())))
        assert again.rule == settings.rule and again.parts == settings.parts
        assert all(getattr(again, part) == getattr(settings, part) for part in settings.parts)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"dyna": {"horizonn": 3}}, "did you mean 'horizon'"),
        ({"dynna": {}}, "did you mean 'dyna'"),
        ({"rule": {"eta": 0.1}}, "unknown setting of cdpo 'eta'"),
        ({"dyna": {"horizon": 2.5}}, "must be of type int"),
        ({"dyna": {"horizon": True}}, "must be of type int"),
        ({"sac": {"layer_norm": 1}}, "must be of type bool"),
        ({"ensemble": {"data": "disjointed"}}, "did you mean 'disjoint'"),
        ({"ensemble": {"heads": 0}}, "at least 1"),
        ({"ensemble": {"held_out": 1.0}}, "less than 1"),
        ({"dyna": {"initial": 0.0, "visited": 0.0, "broad": 0.0}}, "must not all be zero"),
        ({"rule": {"kl": 0.0}}, "--cdpo.schedule none"),
        ({"loop": {"discount": 1.0}}, "below 1"),
        ({"learner": "pppo"}, "unknown learner 'pppo'; did you mean 'ppo'"),
        ({"mpo": {"samples": 0}}, "mpo.samples must be at least 1"),
        ({"solver": "btpt"}, "unknown solver 'btpt'; did you mean 'bptt'"),
        ({"solver": "mcp"}, "unknown solver 'mcp'; did you mean 'mpc'"),
        ({"solver": 3}, "solver must be a word, not 3"),
        ({"loop": 3}, "loop must be a dict or LoopSettings, not 3"),
        ({"rule": 3}, "rule must be a dict or CDPO, not 3"),
        ({"rule": {"kl": "much"}}, "cdpo.kl must be of type float, not 'much'"),
        ({"sac": {"hidden": 64}}, "sac.hidden must be whole numbers in a list, not 64"),
        ({"sac": {"hidden": [64.5]}}, "sac.hidden must be whole numbers in a list, not [64.5]"),
        ({"sac": {"polyak": [0.1]}}, "sac.polyak must be of type float, not [0.1]"),
    ],
)
def test_a_mistake_is_told_in_one_line(changes, word):
    with pytest.raises(UserError) as told:
        Settings(rule=CDPO()).changed(**changes)
    assert word in str(told.value) and "\n" not in str(told.value)


SEVEN = {"rule": {"name": "cdpo"}, "loop": 7}


def test_parts_are_given_whole_or_as_some_of_their_numbers_also_those_of_numpy():
    whole = Settings().changed(dyna=DynaSettings(horizon=3))
    assert whole == Settings().changed(dyna={"horizon": np.int64(3)})
    assert json.dumps(whole.to_json()) == json.dumps(Settings().changed(dyna={"horizon": np.int64(3)}).to_json())


@pytest.mark.parametrize("text", [None, 3, [], {}, {"rule": {"name": "nobody"}}, {"rule": {}, "dyna": 3}, SEVEN])
def test_settings_that_are_none_are_refused(text):
    with pytest.raises(UserError):
        Settings.from_json(text)


def test_the_paper_preset_holds_the_papers_table():
    settings = preset("paper", TASKS["half-cheetah"])
    assert settings.ensemble.hidden == (200,) * 5
    assert settings.ensemble.learning_rate == 1e-3
    assert 3 <= settings.ensemble.heads <= 5
    assert settings.dyna.updates == 20
    # three simulated batches of 100 and a real one
    assert settings.rule.models * settings.dyna.batch == 400 and settings.dyna.real == 0.25


def test_heads_of_the_paper_preset_have_data_of_their_own_and_those_of_others_what_their_authors_say():
    data = {
        rule: preset("paper", TASKS["pusher"], rule).ensemble.data for rule in RULES if "ensemble" in RULES[rule]().uses
    }
    assert data == dict.fromkeys(data, "disjoint") | {"mbpo": "all", "me-trpo": "all", "slbo": "bootstrap"}
    assert preset("default", TASKS["pusher"]).ensemble.data == "bootstrap"


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", PRESETS)
def test_agents_without_a_model_have_the_settings_of_their_authors_whatever_the_task(task, name):
    sac, ppo, mpo = (preset(name, TASKS[task], rule) for rule in ("sac", "ppo", "mpo"))
    assert (sac.sac.hidden, sac.sac.learning_rate, sac.sac.polyak) == ((256, 256), 3e-4, 0.005)
    assert (sac.sac.holds, sac.sac.negentropy) == ("entropy", 1)
    assert (sac.rule.batch, sac.rule.ratio, sac.sac.critic, sac.loop.noise) == (256, 1.0, "pooled", "white")
    assert (ppo.rule.steps, ppo.ppo.epochs, ppo.ppo.minibatches, ppo.ppo.learning_rate) == (2048, 10, 32, 3e-4)
    assert (ppo.ppo.clip, ppo.ppo.trace, ppo.ppo.noise, ppo.ppo.gradient) == (0.2, 0.95, "learned", 0.5)
    assert (mpo.mpo.samples, mpo.mpo.kl, mpo.rule.ratio) == (20, 0.1, 1.0)
    assert ppo.loop.noise == mpo.loop.noise == "white"
    assert {agent.loop.random_noise for agent in (sac, ppo, mpo)} == {"white"}


@pytest.mark.parametrize("name", PRESETS)
def test_random_episodes_are_white_where_policies_are_and_where_pink_ones_turn_on_their_backs(name):
    noise = {task: preset(name, TASKS[task]).loop.random_noise for task in TASKS}
    assert {task for task in TASKS if noise[task] == "white"} == {"half-cheetah"}
    assert preset(name, find_task("HalfCheetah-v5")).loop.random_noise == "white"
    assert preset("paper", TASKS["pusher"], "mbpo").loop.random_noise == "white"


def test_mbpo_has_the_settings_of_its_authors_and_half_their_updates_on_half_cheetah():
    theirs = preset("paper", TASKS["half-cheetah"], "mbpo")
    assert (theirs.ensemble.heads, theirs.rule.models, theirs.ensemble.likelihood) == (7, 5, "gaussian")
    assert (theirs.dyna.horizon, theirs.dyna.real, theirs.sac.critic) == (1, 0.05, "pooled")
    assert (theirs.sac.holds, theirs.sac.negentropy) == ("entropy", 0.5)
    assert theirs.starts is theirs.dyna and (theirs.dyna.initial, theirs.dyna.broad) == (0, 0)
    assert theirs.ensemble.hidden == (200,) * 4 and theirs.sac.hidden == (256, 256)
    assert theirs.loop.stretch == 250 and theirs.loop.random * 1000 == 5000  # steps before anything is learned
    assert theirs.dyna.rounds * theirs.dyna.updates == 40 * 250  # updates for as many steps
    assert theirs.dyna.rounds * theirs.dyna.particles * theirs.rule.models == 400 * 250
    assert (1 + theirs.dyna.earlier) * theirs.loop.stretch == 1000  # steps for which rollouts count
    ensemble = theirs.ensemble
    assert ensemble.data == "all" and ensemble.patience * ensemble.check * ensemble.batch > 5 * 50_000  # five passes
    half = {"dyna": {"updates": theirs.dyna.updates // 2}}
    for task in ("half-cheetah", "HalfCheetah-v5"):  # evaluated as often as other agents
        assert preset("default", find_task(task), "mbpo") == theirs.changed(loop={"evaluate": 5}, **half)


@pytest.mark.parametrize("task", TASKS)
def test_mbpo_has_the_updates_of_its_authors_for_each_step_however_long_an_episode_is(task):
    horizon, theirs = TASKS[task].horizon, preset("paper", TASKS[task], "mbpo")
    iterations = -(-horizon // theirs.loop.stretch)
    assert iterations * theirs.dyna.rounds * theirs.dyna.updates == 40 * horizon
    assert theirs.loop.stretch <= 250


def test_mbpo_has_the_budget_of_cdpo_where_that_is_enough():
    for task in ("inverted-pendulum", "pusher"):
        ours, cdpo = (preset("default", TASKS[task], rule) for rule in ("mbpo", "cdpo"))
        assert ours.dyna.rounds * ours.dyna.updates == 2 * cdpo.dyna.rounds * cdpo.dyna.updates
        assert ours.dyna.particles * ours.dyna.horizon == cdpo.dyna.particles * cdpo.dyna.horizon
        assert (ours.ensemble.heads, ours.rule.models, ours.ensemble.likelihood) == (7, 5, "gaussian")
    assert preset("default", TASKS["inverted-pendulum"], "mbpo").sac.negentropy == 0.05


def test_optimism_reaches_as_far_as_trials_found_best_on_a_task():
    reach = {task: preset("default", TASKS[task], "hucrl").rule.beta for task in ("half-cheetah", "inverted-pendulum")}
    assert reach == {"half-cheetah": 0.1, "inverted-pendulum": 0.1}
    assert preset("default", TASKS["pendulum-swingup"], "hucrl").rule.beta == 1


@pytest.mark.parametrize("task", ["half-cheetah", "pusher"])
def test_every_solver_has_networks_and_noise_of_the_same_size_on_a_large_task(task):
    settings = preset("default", TASKS[task])
    for part in (settings.bptt, settings.mpc):
        assert (part.hidden, part.deviation) == (settings.sac.hidden, settings.sac.deviation)


def test_me_trpo_has_the_settings_of_its_authors():
    ours, theirs = (preset(name, TASKS["half-cheetah"], "me-trpo") for name in PRESETS)
    for settings in (ours, theirs):
        assert (settings.rule.models, settings.ensemble.heads, settings.rule.share) == (5, 5, 0.7)
        assert (settings.ensemble.data, settings.ensemble.likelihood) == ("all", "deterministic")
        assert (settings.dyna.rounds, settings.dyna.initial, settings.trpo.kl) == (5, 1.0, 0.01)
        assert settings.dyna.horizon == 100
    assert theirs.hidden == (32, 32) and theirs.ensemble.hidden == (1024, 1024)
    assert theirs.dyna.particles * 100 * theirs.rule.models == 50_000
    assert (ours.dyna.particles, preset("default", TASKS["inverted-pendulum"], "me-trpo").dyna.particles) == (25, 12)


def test_slbo_has_the_settings_of_its_authors():
    ours, theirs = (preset(name, TASKS["half-cheetah"], "slbo") for name in PRESETS)
    for settings in (ours, theirs):
        assert (settings.ensemble.unrolled, settings.ensemble.likelihood) == (2, "deterministic")
        assert (settings.dyna.initial, settings.trpo.kl, settings.parts) == (1.0, 0.01, settings.rule.uses)
    assert (theirs.rule.turns, theirs.ensemble.steps, theirs.dyna.rounds) == (20, 100, 40)
    assert theirs.rule.models * theirs.dyna.particles * theirs.dyna.horizon == 4000


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(UserError, match="did you mean 'default'"):
        preset("defalt", TASKS["pusher"])
    with pytest.raises(UserError, match="did you mean 'psrl'"):
        preset("default", TASKS["pusher"], "psrll")


def test_without_a_known_range_no_rollout_begins_beyond_what_was_seen():
    unknown, known = find_task("Pendulum-v1"), find_task("pendulum-swingup")
    for solver in ("dyna", "bptt", "mpc"):
        assert preset("default", known).changed(solver=solver).starts.broad > 0
        for name in PRESETS:
            assert preset(name, unknown).changed(solver=solver).starts.broad == 0


def test_a_policy_has_the_layers_of_the_solver_that_optimises_it():
    settings = Settings().changed(sac={"hidden": (3,)}, bptt={"hidden": (4,)}, actor_critic={"hidden": (5,)})
    settings = settings.changed(mpc={"hidden": (6,)})
    assert settings.hidden == (3,)
    assert settings.changed(solver="bptt").hidden == (4,)
    assert settings.changed(learner="actor-critic").hidden == (5,)
    assert settings.changed(solver="mpc").hidden == (6,)
    assert preset("default", TASKS["pusher"], "sac").hidden == (256, 256)
    assert preset("default", TASKS["pusher"], "ppo").hidden == (64, 64)


def test_settings_that_name_no_learner_are_those_of_sac():
    told = Settings().changed(sac={"hidden": (3,)}).to_json()
    assert told.pop("learner") == "sac"
    assert Settings.from_json(told) == Settings().changed(sac={"hidden": (3,)})


@pytest.mark.parametrize("learner", LEARNERS)
def test_only_what_the_learner_is_told_is_kept(learner):
    told = Settings(learner=learner).to_json()
    assert {part for part in told if part in ("sac", "mpo", "ppo", "trpo", "actor_critic", "bptt")} == {
        part_of(learner)
    }


@pytest.mark.parametrize("name", PRESETS)
def test_dpi_does_not_repeat_its_one_model(name):
    assert preset(name, find_task("pusher"), "dpi").rule.models == 1


def test_dpi_learns_within_the_episodes_of_half_cheetah_in_half_of_the_rounds_that_cdpo_has():
    for task in map(find_task, ("half-cheetah", "HalfCheetah-v5")):
        dpi, cdpo = preset("default", task, "dpi"), preset("default", task)
        assert 2 * dpi.mpc.rounds * task.horizon // dpi.loop.stretch == 2 * cdpo.dyna.rounds
    assert preset("default", find_task("pusher"), "dpi").loop.stretch == 0


def test_a_learner_has_a_preset_of_its_own():
    for task in (TASKS["pendulum-swingup"], TASKS["half-cheetah"]):
        rounds = {learner: preset("default", task, learner=learner).dyna.rounds for learner in LEARNERS}
        assert rounds["sac"] == rounds["mpo"] < rounds["ppo"] == rounds["actor-critic"] < rounds["trpo"]
    assert all(preset("default", task, learner=learner).learner == learner for learner in LEARNERS)
    with pytest.raises(UserError, match="did you mean 'ppo'"):
        preset("default", task, learner="pppo")


def test_what_is_known_of_a_task_comes_before_what_is_usual_for_unknown_rewards():
    ours, theirs, unknown = (
        preset("default", find_task(name)) for name in ("half-cheetah", "HalfCheetah-v5", "Swimmer-v5")
    )
    assert theirs == ours
    assert (ours.dyna.returns, unknown.dyna.returns) == (1, 5)
    assert unknown.dyna.broad == ours.dyna.broad == 0
