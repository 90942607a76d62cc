"""Seeds side by side: each is its own."""

from dataclasses import replace
from itertools import pairwise

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box

from cdpo.agents import Kit
from cdpo.errors import UserError
from cdpo.tasks import find_task
from cdpo.training import loop
from cdpo.training.collect import Life, training_life
from cdpo.training.loop import Trainer, advance_together
from cdpo.training.presets import preset


class Drift(gymnasium.Env):
    """Two numbers that drift; episodes end when they like to, and one may hold what is no number."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space = Box(-1.0, 1.0, (1,), np.float32)
    spoilt: tuple[int, ...] = ()  # which resets lead to bad numbers
    raising: tuple[int, ...] = ()  # and which to an error at once
    resets = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count, self.spoils = 0, type(self).resets in type(self).spoilt
        type(self).resets += 1
        if type(self).resets - 1 in type(self).raising:
            raise OSError("nobody there")
        self.state = self.np_random.normal(size=2).astype(np.float32)
        self.length = int(self.np_random.integers(3, 9))
        return self.state, {}

    def step(self, action):
        self.count += 1
        self.state = self.state + np.float32(0.1) * np.float32([action[0], 1.0])
        if self.spoils and self.count == 2:
            self.state = self.state * np.float32(np.nan)
        return self.state, float(-np.sum(self.state**2)), self.count >= self.length, False, {}


TASK = find_task(Drift, horizon=10)  # one for all: with another, every test would compile its programs anew


@pytest.fixture
def drift():
    Drift.resets, Drift.spoilt, Drift.raising = 0, (), ()
    return TASK


@pytest.fixture
def together(monkeypatch):
    """All seeds in one chunk, mapped over one program, as on an accelerator."""
    monkeypatch.setattr(loop, "chunks_of", lambda lanes: [list(lanes)])


def told(trainer, episodes):
    """What is written of some episodes; as text, since what is no number does not equal itself."""
    return [record for _ in range(episodes) for record in map(Record, trainer.advance().records)]


class Record(dict):
    """Equal if it is written the same."""

    def __eq__(self, other):
        return repr(self) == repr(other)

    __hash__ = None


def settings(task, tiny):
    rule = {"models": tiny["models"]}
    return preset("default", task).changed(rule=rule, **{name: tiny[name] for name in tiny if name != "models"})


def test_episodes_that_end_early_do_not_spoil_the_others(drift, tiny):
    trainer = Trainer(drift, settings(drift, tiny), [0, 1, 2])
    records = told(trainer, 3)
    assert len({record["episode_length"] for record in records}) > 1
    for pupil, rows in zip(trainer.pupils, trainer.rows(), strict=True):
        assert pupil.steps == len(rows) == sum(r["episode_length"] for r in records if r["seed"] == pupil.seed)
        ends = np.cumsum([r["episode_length"] for r in records if r["seed"] == pupil.seed]) - 1
        np.testing.assert_array_equal(np.flatnonzero(rows[:, -2]), ends)
    alone = told(Trainer(drift, settings(drift, tiny), [1]), 3)
    assert alone == [record for record in records if record["seed"] == 1]


def test_the_first_episodes_act_at_random_and_nothing_is_learned_before_they_are_over(drift, tiny):
    one = settings(drift, tiny)
    patient, hasty = (Trainer(drift, one.changed(loop={"random": count}), [3]) for count in (3, 1))
    untrained = patient.mind(0)
    early = [patient.advance().records[0] for _ in range(3)]
    assert eqx.tree_equal(patient.mind(0), untrained)
    assert all(record["eval_return"] is None and "model_rows" not in record for record in early)
    [rows] = patient.rows()
    last = training_life(drift.make(), drift, 3, 2, "pink", random=True).go(None, drift.horizon)
    np.testing.assert_array_equal(rows[-len(last) :], last)  # by uniform actions, and not by a policy
    record = patient.advance().records[0]
    assert drift.horizon < record["model_rows"] <= len(rows)  # of more than one episode, but for what is held out
    assert record["eval_return"] is not None and "model_error" in record
    hasty.advance()
    assert "model_rows" in hasty.advance().records[0]


def spied(trainer, monkeypatch):
    """What a trainer does: ("learn", iterations, rows so far), ("act", policy's first number) and ("judge", rows)."""
    seen, learn, judge, go = [], trainer._learn, trainer._judge, Life.go

    def spy_learn(agent, mind, replay, starts, iteration, keys):
        seen.append(("learn", iteration.tolist(), replay.size.tolist()))
        return learn(agent, mind, replay, starts, iteration, keys)

    def spy_judge(agent, mind, replay, counts):
        seen.append(("judge", counts.tolist()))
        return judge(agent, mind, replay, counts)

    def spy_go(life, policy, steps):
        rows = go(life, policy, steps)
        seen.append(
            ("act" if life._noise is not None else "evaluate", None if policy is None else policy._layers[-1][1])
        )
        return rows

    monkeypatch.setattr(trainer, "_learn", spy_learn)
    monkeypatch.setattr(trainer, "_judge", spy_judge)
    monkeypatch.setattr(Life, "go", spy_go)
    return seen


def test_by_stretches_an_agent_learns_within_episodes_and_acts_by_what_it_learned(drift, tiny, monkeypatch):
    trainer = Trainer(drift, settings(drift, tiny).changed(loop={"stretch": 3}), [0])
    seen = spied(trainer, monkeypatch)
    records = told(trainer, 3)
    size, iteration = records[0]["episode_length"], 0  # in the random episode there is nothing to learn
    order = ["act"]
    fits, judged = [], []
    for record in records[1:]:
        for start in range(0, record["episode_length"], 3):
            iteration += 1
            fits.append(("learn", [iteration], [size + start]))
            judged.append(("judge", [min(3, record["episode_length"] - start)]))
            order += ["learn", "act", "judge"]
        size += record["episode_length"]
        order += ["evaluate"] * settings(drift, tiny).loop.evaluation_episodes
    assert [what[0] for what in seen] == order
    assert [what for what in seen if what[0] == "learn"] == fits
    assert [what for what in seen if what[0] == "judge"] == judged
    assert trainer.pupils[0].iterations == iteration > 2
    acted = [what[1] for what in seen if what[0] == "act"][1:]
    assert all(np.any(first != second) for first, second in pairwise(acted))  # every stretch by a policy of its own
    evaluated = [what[1] for what in seen if what[0] == "evaluate"]
    np.testing.assert_array_equal(evaluated[-1], acted[-1])
    np.testing.assert_array_equal(acted[-1], trainer.mind(0).policy.net.biases[-1])


def test_the_metrics_of_an_episode_are_those_of_its_last_iteration(drift, tiny, monkeypatch):
    trainer = Trainer(drift, settings(drift, tiny).changed(loop={"stretch": 3}), [0])
    fits, learn = [], trainer._learn

    def spy(*arguments):
        mind, metrics = learn(*arguments)
        fits.append(int(metrics["model_rows"][0]))
        return mind, metrics

    monkeypatch.setattr(trainer, "_learn", spy)
    records = told(trainer, 2)
    assert len(set(fits)) == len(fits) > 1
    assert records[-1]["model_rows"] == fits[-1]


def test_a_stretch_as_long_as_an_episode_is_the_episode(drift, tiny):
    at_once, stretched = (settings(drift, tiny).changed(loop={"stretch": each}) for each in (0, drift.horizon))
    assert told(Trainer(drift, at_once, [0]), 3) == told(Trainer(drift, stretched, [0]), 3)


@pytest.mark.slow
def test_a_mapped_seed_whose_episode_is_over_rests_while_others_learn_on(drift, tiny, together):
    by_two = settings(drift, tiny).changed(loop={"stretch": 2})
    trainer = Trainer(drift, by_two, [0, 1])
    records = told(trainer, 2)
    iterations = [-(-record["episode_length"] // 2) for record in records[2:]]
    assert iterations[0] != iterations[1]  # one is over before the other
    assert [pupil.iterations for pupil in trainer.pupils] == iterations
    for lane, seed in enumerate((0, 1)):
        alone = Trainer(drift, by_two, [seed])
        told(alone, 2)
        bias, same = (trained.mind(number).policy.net.biases[0] for trained, number in ((trainer, lane), (alone, 0)))
        np.testing.assert_allclose(bias, same, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(trainer.rows()[lane], alone.rows()[0], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("why", ["data", "model"])
def test_a_mapped_seed_that_stops_within_an_episode_keeps_no_row_of_it(drift, tiny, together, monkeypatch, why):
    by_one = settings(drift, tiny).changed(loop={"stretch": 1})
    monkeypatch.setattr(loop, "on_threads", loop.one_by_one)
    whole, broken = (Trainer(drift, by_one, [0, 1]) for _ in range(2))
    expected = told(whole, 2)
    Drift.resets = 0
    told(broken, 1)
    rows, learn = broken.rows()[1], broken._learn

    def spoilt(agent, mind, replay, starts, iteration, keys):
        mind, metrics = learn(agent, mind, replay, starts, iteration, keys)
        net = mind.belief.ensemble.net.biases[0]
        bad = net.at[1].set(jnp.where(iteration[1] == 3, jnp.nan, net[1]))
        return eqx.tree_at(lambda m: m.belief.ensemble.net.biases[0], mind, bad), metrics

    if why == "data":
        Drift.spoilt = (Drift.resets + 1,)  # the second seed's episode turns bad with its second step
    else:
        monkeypatch.setattr(broken, "_learn", spoilt)
    assert told(broken, 1) == expected[2:3]  # the other goes on as if nothing had happened
    reason = {"data": "the data of episode 1", "model": "the model in iteration 3"}[why]
    assert broken.pupils[1].stopped == f"{reason}: not a finite number"
    np.testing.assert_array_equal(broken.rows()[1], rows)
    assert len(broken.rows()[0]) > len(rows)
    mind = broken.mind(1)
    told(broken, 1)
    assert eqx.tree_equal(broken.mind(1), mind)  # who has stopped learns no more


def test_seeds_that_share_an_environment_cannot_learn_within_episodes(drift, tiny):
    shared = replace(drift, shared=True)
    Trainer(shared, settings(shared, tiny).changed(loop={"stretch": 2}), [0])
    with pytest.raises(UserError, match=r"share an environment .*loop\.stretch 0"):
        Trainer(shared, settings(shared, tiny).changed(loop={"stretch": 2}), [0, 1])


def test_seeds_side_by_side_may_differ_in_numbers_and_each_is_as_it_is_alone(drift, tiny):
    one = settings(drift, tiny)
    variants = [one, one.changed(rule={"kl": 1e-3}), one.changed(sac={"learning_rate": 0.1})]
    records = told(Trainer(drift, variants, [4, 4, 4]), 3)
    compiled = Kit.solve._cache_size()
    for number, variant in enumerate(variants):
        assert told(Trainer(drift, variant, [4]), 3) == records[number::3]
    assert Kit.solve._cache_size() == compiled  # numbers are values of one program
    bounds = {record["kl_bound"] for record in records if record["episode"] > 0}
    assert bounds == {np.float32(one.rule.kl).item(), np.float32(1e-3).item()}
    assert records[-3]["pi_value"] != records[-1]["pi_value"]


@pytest.mark.parametrize(
    "change",
    [
        {"rule": {"update": "referential"}},
        {"dyna": {"real": 0.5}},
        {"loop": {"discount": 0.5}},
        {"solver": "bptt"},
        {"bptt": {"kind": "svg"}},
        {"mpc": {"moves": "actions"}},
    ],
)
def test_seeds_side_by_side_cannot_differ_in_what_makes_another_program(drift, tiny, change):
    one = settings(drift, tiny)
    with pytest.raises(UserError, match="side by side"):
        Trainer(drift, [one, one.changed(**change)], [0, 1])


def test_a_seed_with_bad_data_stops_by_name_and_the_others_go_on_unchanged(drift, tiny, monkeypatch):
    # One thread: the count of resets says whose episode is spoilt.
    monkeypatch.setattr(loop, "on_threads", loop.one_by_one)
    whole = told(Trainer(drift, settings(drift, tiny), [0, 1]), 3)
    Drift.resets, begun = 0, 2 * 256
    Drift.spoilt = (begun + 1,)  # the second seed's first episode
    trainer = Trainer(drift, settings(drift, tiny), [0, 1])
    records = told(trainer, 3)
    assert trainer.pupils[1].stopped == "the data of episode 0: not a finite number"
    assert trainer.pupils[0].stopped is None and trainer.going
    assert records == [record for record in whole if record["seed"] == 0]
    assert len(trainer.rows()[1]) == 0


@pytest.mark.slow
def test_a_mapped_seed_that_cannot_begin_rests_while_others_learn_on_unchanged(drift, tiny, together, monkeypatch):
    monkeypatch.setattr(loop, "on_threads", loop.one_by_one)
    whole = told(Trainer(drift, settings(drift, tiny), [0, 1]), 3)
    Drift.resets, Drift.raising = 0, (256 + 7,)
    broken = Trainer(drift, settings(drift, tiny), [0, 1])
    assert told(broken, 3) == whole[::2]
    assert broken.pupils[1].stopped == "the environment at the beginning: OSError: nobody there"
    assert len(broken.rows()[1]) == 0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(broken.mind(1).policy.net))


def test_what_is_no_number_among_the_metrics_is_not_known_in_lists_as_well():
    metrics = {"gap": np.array([np.nan, 2.0]), "map": np.array([[1.0, np.inf], [3.0, 4.0]]), "rows": np.array([5, 6])}
    assert loop._lane(metrics, 0) == {"gap": None, "map": [1.0, None], "rows": 5}
    assert loop._lane(metrics, 1) == {"gap": 2.0, "map": [3.0, 4.0], "rows": 6}


@pytest.mark.parametrize("part", ["model", "policy"])
def test_a_seed_whose_numbers_turn_bad_keeps_what_it_had(drift, tiny, part):
    trainer = Trainer(drift, settings(drift, tiny), [0])
    told(trainer, 2)
    where = {"model": lambda m: m.belief.ensemble.net.biases[0], "policy": lambda m: m.policy.net.biases[0]}[part]
    chunk = trainer.chunks[0]
    spoilt = eqx.tree_at(where, chunk.mind, where(chunk.mind) * jnp.nan)
    trainer.chunks[0] = chunk._replace(mind=spoilt)
    assert told(trainer, 1) == []
    assert trainer.pupils[0].stopped is not None and "iteration 2" in trainer.pupils[0].stopped
    assert not trainer.going
    assert np.isnan(np.asarray(where(trainer.chunks[0].mind))).all()  # nothing was taken over from the bad iteration


@pytest.mark.slow
def test_the_buffer_grows_without_a_trace(drift, tiny, monkeypatch):
    roomy = Trainer(drift, settings(drift, tiny), [0])
    told(roomy, 2)
    monkeypatch.setattr(loop, "_FIRST_ROWS", 16)
    tight = Trainer(drift, settings(drift, tiny), [0])
    assert tight.chunks[0].replay.capacity == 16 < roomy.chunks[0].replay.capacity
    told(tight, 2)
    assert tight.chunks[0].replay.capacity > 16
    np.testing.assert_array_equal(roomy.rows()[0][:3], tight.rows()[0][:3])
    size = len(tight.rows()[0])
    assert tight.chunks[0].replay.capacity == loop.capacity_for(drift, size)


def test_a_restored_trainer_stands_where_the_other_stood(drift, tiny):
    trainer = Trainer(drift, settings(drift, tiny), [3, 5])
    rows = [np.full((count, trainer.row_width), count, np.float32) for count in (4, 7)]
    stood = [
        {"steps": 4, "iterations": 2, "evaluated": -1.0, "stopped": None},
        {"steps": 7, "iterations": 1, "evaluated": None, "stopped": "the data of episode 2"},
    ]
    minds = jax.tree.map(lambda leaf: leaf + 1, trainer.minds())
    trainer.restore(3, minds, rows, stood)
    assert trainer.episode == 3
    assert eqx.tree_equal(trainer.minds(), minds)
    for found, expected in zip(trainer.rows(), rows, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert [{name: getattr(pupil, name) for name in stood[0]} for pupil in trainer.pupils] == stood


@pytest.mark.slow
def test_with_linear_models_a_trainer_that_is_restored_goes_on_to_the_same_bits(tiny):
    task = find_task("lqr", horizon=12)
    assert settings(task, tiny).ensemble.kind == "linear"
    whole, restored = (Trainer(task, settings(task, tiny), [0, 1]) for _ in range(2))
    told(whole, 2)
    known = [vars(pupil) for pupil in whole.pupils]
    restored.restore(whole.episode, whole.minds(), whole.rows(), known)
    assert told(restored, 2) == told(whole, 2)
    assert whole.mind(0).fit_state == restored.mind(0).fit_state  # which holds nothing: every fit is exact


@pytest.fixture
def compiled_alike(compiled_soon):
    """With optimisation two programs round differently, and what a search keeps may turn on it."""


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["dyna", "bptt", "mpc"])
def test_seeds_that_are_mapped_over_one_program_are_as_they_are_alone(
    drift, tiny, tiny_bptt, tiny_mpc, together, compiled_alike, solver
):
    one = settings(drift, tiny).changed(solver=solver, bptt=tiny_bptt, mpc=tiny_mpc)
    variants = [one, one.changed(rule={"kl": 1e-3})]
    trainer = Trainer(drift, variants, [3, 5])
    assert len(trainer.chunks) == 1
    records = told(trainer, 2)
    for lane, (variant, seed) in enumerate(zip(variants, (3, 5), strict=True)):
        alone = Trainer(drift, variant, [seed])
        for ours, theirs in zip(records[lane::2], told(alone, 2), strict=True):
            assert ours.keys() == theirs.keys()
            for name, value in theirs.items():
                # Sums are taken in another order.
                np.testing.assert_allclose(
                    np.array(ours[name], float), np.array(value, float), 1e-3, 1e-4, err_msg=name
                )
        np.testing.assert_allclose(trainer.rows()[lane], alone.rows()[0], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("stretch", [0, 2])
def test_trainers_that_advance_together_are_one_program_and_part_again(drift, tiny, together, stretch):
    one = settings(drift, tiny).changed(loop={"stretch": stretch})
    variants = [one, one.changed(rule={"kl": 1e-3})]
    whole = Trainer(drift, variants, [3, 5])
    expected = told(whole, 3)
    apart = [Trainer(drift, variant, [seed]) for variant, seed in zip(variants, (3, 5), strict=True)]
    for episode in range(2):
        first, second = advance_together(apart)
        assert first.records + second.records == expected[2 * episode : 2 * episode + 2]
        # One of them finds more room: the others get as much.
        chunk = apart[0].chunks[0]
        apart[0].chunks[0] = chunk._replace(replay=loop._with_capacity(chunk.replay, 2 * chunk.replay.capacity))
    assert [trainer.episode for trainer in apart] == [2, 2]
    for trainer, seed, rows in zip(apart, (3, 5), whole.rows(), strict=True):
        assert [pupil.seed for pupil in trainer.pupils] == [seed]
        np.testing.assert_array_equal(trainer.rows()[0], rows[: len(trainer.rows()[0])])
    lived = advance_together(apart, last=True)
    np.testing.assert_allclose(
        [each.records[0]["return"] for each in lived], [record["return"] for record in expected[4:]], rtol=1e-3
    )


def test_interrupted_at_its_end_an_episode_is_not_taken_for_the_one_before(drift, tiny, monkeypatch):
    class Fragile(Trainer):
        def __setattr__(self, name, value):
            if name == "chunks" and getattr(self, "episode", 0):
                raise KeyboardInterrupt
            super().__setattr__(name, value)

    trainer = Fragile(drift, settings(drift, tiny), [0])
    with pytest.raises(KeyboardInterrupt):
        trainer.advance()
    assert trainer.episode == 1  # of which no journal has heard: it keeps nothing of this
    assert trainer.pupils[0].steps == 0


@pytest.mark.slow
def test_a_mapped_seed_whose_numbers_turn_bad_stops_alone(drift, tiny, together):
    whole, broken = (Trainer(drift, settings(drift, tiny), [0, 1]) for _ in range(2))
    expected = told(whole, 3)
    assert told(broken, 2) == expected[:4]
    chunk = broken.chunks[0]
    bias = chunk.mind.policy.net.biases[0]
    spoilt = eqx.tree_at(lambda mind: mind.policy.net.biases[0], chunk.mind, bias.at[1].set(jnp.nan))
    broken.chunks[0] = chunk._replace(mind=spoilt)
    assert told(broken, 1) == expected[4:5]
    assert broken.pupils[0].stopped is None
    assert "iteration 2" in broken.pupils[1].stopped
    assert len(broken.rows()[1]) == sum(record["episode_length"] for record in expected[1:4:2])
