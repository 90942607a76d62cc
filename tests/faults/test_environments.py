"""An environment may raise, answer nonsense, fall silent or give bad numbers: that is the end of its seed alone."""

import json
import threading
from dataclasses import replace

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box
from gymnasium.wrappers import TimeLimit

import cdpo
from cdpo.cli import _run
from cdpo.errors import UserError
from cdpo.tasks import check_task, find_task
from cdpo.training import collect
from cdpo.training.loop import Trainer
from cdpo.training.pupils import bad_function

STEPS, LATER = 6, 2**31  # steps of an episode; the episode that stands for evaluations after training


class Rig(gymnasium.Env):
    """Two numbers that are pushed about, with faults at chosen episodes."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float64)
    action_space = Box(-1.0, 1.0, (1,), np.float32)
    at_reset: dict = {}  # noqa: RUF012 - what to answer instead, by the seed of the reset
    at_step: dict = {}  # noqa: RUF012 - the same of the third step

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.begun, self.count, self.place = seed, 0, self.np_random.normal(size=2)
        fault = self.at_reset.get(seed)
        return (self.place, {}) if fault is None else fault((self.place, {}))

    def step(self, action):
        assert np.isfinite(action).all()  # motors are broken by others
        self.count += 1
        self.place = self.place + 0.1 * np.array([action[0], 1.0])
        answer = self.place, float(-np.sum(self.place**2)), False, False, {}
        fault = self.at_step.get(self.begun) if self.count == 3 else None
        return answer if fault is None else fault(answer)


gymnasium.register("Rig-v0", entry_point=Rig, max_episode_steps=STEPS)
TASK = find_task("Rig-v0")
BARE = replace(TASK, make=lambda render_mode=None: Rig())  # without Gymnasium's wrappers, which take answers apart


@pytest.fixture(autouse=True)
def sound(monkeypatch):
    """Nothing is wrong but what a test says."""
    monkeypatch.setattr(Rig, "at_reset", {})
    monkeypatch.setattr(Rig, "at_step", {})


@pytest.fixture
def idle(monkeypatch):
    """Agents that live and are evaluated as ever, and learn nothing: no program is compiled."""
    _idle(monkeypatch)


def _idle(monkeypatch):
    monkeypatch.setattr(Trainer, "_learned", lambda self, chunk, lanes: (chunk, {}))
    monkeypatch.setattr(
        Trainer, "_judge", property(lambda self: lambda *_: {}, lambda self, value: None), raising=False
    )


@pytest.fixture(scope="module")
def whole(tiny):
    """What three seeds live through where nothing is wrong: their records and rows."""
    with pytest.MonkeyPatch.context() as patch:
        _idle(patch)
        sound = agent(tiny).learn(episodes=3)
    return lived(sound), sound._trainer.rows()


def begins(seed, purpose, episode, number=0):
    """The seed of the reset by which an episode begins."""
    return collect.streams(seed, {"initial": 0, "training": 1, "evaluation": 2}[purpose], episode, number)[0]


def raising(error):
    def fault(answer):
        raise error

    return fault


def instead(place, value):
    """One of the values of an answer is another."""
    return lambda answer: (*answer[:place], value, *answer[place + 1 :])


def agent(tiny, seeds=3, task="Rig-v0", **changes):
    return cdpo.CDPO(task, seeds=seeds, **{**tiny, **changes})


def lived(agent):
    return [{name: value for name, value in each.items() if name != "wall_s"} for each in agent.records]


def of(records, seeds):
    return [record for record in records if record["seed"] in seeds]


def strict(text):
    """What JSON itself allows, without the words that Python adds."""

    def refused(word):
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refused)


class Mute(Exception):
    """Cannot even say what it is."""

    def __str__(self):
        raise RuntimeError


FAULTS = {
    "error": (raising(ValueError("lost the motor")), "ValueError: lost the motor"),
    "lines": (raising(RuntimeError("the\ncable\n\x1b[2Jis \ud800off")), r"RuntimeError: the cable \x1b[2Jis \ud800off"),
    "long": (raising(KeyError("x" * 10**6)), "KeyError: '" + "x" * 189 + " ..."),
    "nameless": (raising(AssertionError()), "AssertionError"),
    "mute": (raising(Mute()), "Mute"),
    "system": (raising(OSError(28, "No space left on device")), "OSError: [Errno 28] No space left on device"),
    "memory": (raising(MemoryError()), "MemoryError"),
    "ours": (raising(UserError("plug it in; then go on")), "plug it in; then go on"),
    "four": (lambda answer: answer[:4], "step gave 4 values, not observation, reward, terminated, truncated and info"),
    "none": (lambda answer: None, "step gave None, not observation"),
    "scalar": (instead(0, np.float32(1)), "step gave np.float32(1.0) as its observation, not 2 real numbers in a row"),
    "longer": (instead(0, np.zeros(3)), "step gave an array of shape (3,) and type float64 as its observation"),
    "matrix": (instead(0, np.zeros((1, 2))), "step gave an array of shape (1, 2)"),
    "complex": (instead(0, np.zeros(2, complex)), "step gave an array of shape (2,) and type complex128"),
    "objects": (instead(0, np.array([1.0, None])), "step gave an array of shape (2,) and type object"),
    "words": (instead(0, ["1", "2"]), "step gave a list as its observation"),
    "uneven": (instead(0, [[1.0], [1.0, 2.0]]), "step gave a list as its observation"),
    "unpaid": (instead(1, None), "step gave None as its reward, not one real number"),
    "payments": (instead(1, np.ones(1)), "step gave an array of shape (1,) and type float64 as its reward"),
    "promise": (instead(1, "1.0"), "step gave '1.0' as its reward, not one real number"),
    "imaginary": (instead(1, 1j), "step gave 1j as its reward"),
    "endless": (instead(1, 10**5000), "step gave an int as its reward"),
    "perhaps": (instead(2, None), "step gave None as terminated, not a truth value"),
    "maybe": (instead(2, 0.5), "step gave 0.5 as terminated, not a truth value"),
    "both": (instead(3, np.array([True, False])), "step gave an array of shape (2,) and type bool as truncated"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_what_a_step_raises_or_answers_wrongly_stops_its_seed_on_one_line_and_no_other(idle, tiny, whole, name):
    fault, line = FAULTS[name]
    Rig.at_step = {begins(1, "training", 1): fault}
    broken = agent(tiny, task=BARE).learn(episodes=2)
    [why] = broken.stopped.values()
    assert why.startswith(f"the environment in episode 1: {line}")
    assert why.isprintable() and len(why) < 300 and list(broken.stopped) == [1]
    records, rows = whole
    assert lived(broken) == [each for each in records if each["episode"] <= (0 if each["seed"] == 1 else 2)]
    for found, expected, episodes in zip(broken._trainer.rows(), rows, (3, 1, 3), strict=True):
        np.testing.assert_array_equal(found, expected[: episodes * STEPS])  # half an episode is none


def test_a_wrapper_that_cannot_take_an_answer_apart_says_so(idle, tiny):
    Rig.at_step = {begins(0, "training", 1): FAULTS["four"][0]}
    said = "ValueError: not enough values to unpack (expected 5, got 4)"
    assert agent(tiny).learn(episodes=1).stopped == {0: f"the environment in episode 1: {said}"}


RESETS = {
    "error": (raising(ConnectionError("no answer")), "ConnectionError: no answer"),
    "alone": (lambda answer: answer[0], "reset gave an array of shape (2,) and type float64, not observation and info"),
    "scalar": (instead(0, 1.0), "reset gave 1.0 as its observation, not 2 real numbers in a row"),
}  # fmt: skip


@pytest.mark.parametrize("name", RESETS)
def test_what_a_reset_raises_or_answers_wrongly_stops_its_seed_as_well(idle, tiny, name):
    fault, line = RESETS[name]
    Rig.at_reset = {begins(0, "training", 2): fault}
    broken = agent(tiny, task=BARE).learn(episodes=2)
    assert broken.stopped == {0: f"the environment in episode 2: {line}"}
    assert [record["episode"] for record in of(broken.records, {0})] == [0, 1]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_who_interrupts_or_ends_the_process_does_so_from_within_an_environment(idle, tiny, error):
    Rig.at_step = {begins(0, "training", 1): raising(error())}
    with pytest.raises(error):
        agent(tiny).learn(episodes=2)


def test_truth_values_of_other_kinds_and_observations_in_a_list_are_understood(idle, tiny, whole):
    answers = [lambda a: (list(a[0]), np.float64(a[1]), np.bool_(False), 0, {}), instead(2, np.array(False))]
    Rig.at_step = {begins(seed, "training", 0): answer for seed, answer in enumerate(answers)}
    found = agent(tiny, 2).learn(episodes=1)
    assert lived(found) == [each for each in of(whole[0], {0, 1}) if each["episode"] <= 1]


EVALUATIONS = {
    "reward": (instead(1, np.nan), "the evaluation of episode 2: not a finite number"),
    "infinite": (instead(1, np.inf), "the evaluation of episode 2: not a finite number"),
    "observation": (instead(0, np.array([0.0, np.nan])), "the evaluation of episode 2: not a finite number"),
    "huge": (instead(0, np.array([0.0, 1e300])), "the evaluation of episode 2: not a finite number"),
    "error": (raising(OSError("gone")), "the environment in the evaluation of episode 2: OSError: gone"),
    "wrong": (instead(1, None), "the environment in the evaluation of episode 2: step gave None as its reward"),
}


@pytest.mark.parametrize("name", EVALUATIONS)
def test_a_bad_evaluation_stops_its_seed_whose_episode_is_kept(idle, tiny, whole, name):
    fault, line = EVALUATIONS[name]
    Rig.at_step = {begins(2, "evaluation", 2): fault}
    broken = agent(tiny).learn(episodes=3)
    assert list(broken.stopped) == [2] and broken.stopped[2].startswith(line)
    records, rows = whole
    assert of(lived(broken), {0, 1}) == of(records, {0, 1})
    kept, expected = of(lived(broken), {2}), of(records, {2})[:3]
    assert kept == [*expected[:2], {**expected[2], "eval_return": None, "eval_change": None}]
    for found, each, episodes in zip(broken._trainer.rows(), rows, (4, 4, 3), strict=True):
        np.testing.assert_array_equal(found, each[: episodes * STEPS])
    assert broken._trainer.pupils[2].evaluated == expected[1]["eval_return"]  # the last that was a number


def test_of_a_run_with_bad_numbers_all_that_is_written_is_json_and_can_be_gone_on_with(idle, tiny, tmp_path):
    Rig.at_step = {begins(1, "evaluation", 1): instead(1, np.nan), begins(0, "training", 2): instead(1, np.inf)}
    broken = agent(tiny).learn(episodes=2)
    told = {0: "the data of episode 2: not a finite number", 1: "the evaluation of episode 1: not a finite number"}
    assert broken.stopped == told
    folder = broken.save(tmp_path / "run")
    lines = [strict(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [(each["seed"], each["episode"]) for each in lines] == [
        (0, 0),
        (1, 0),
        (2, 0),
        (0, 1),
        (1, 1),
        (2, 1),
        (2, 2),
    ]
    assert strict((folder / "summary.json").read_text())["stopped"] == {str(seed): why for seed, why in told.items()}
    broken.save(tmp_path / "policies", policy_only=True)
    for loaded in (cdpo.load(folder), cdpo.load(folder, policy_only=True), cdpo.load(tmp_path / "policies")):
        assert loaded.stopped == told and loaded.best.seed == 2
    assert [each["seed"] for each in cdpo.load(folder).learn(episodes=1).records[len(lines) :]] == [2]


def changed(agent, seed, **known):
    chunk = agent._trainer.chunks[seed]
    agent._trainer.chunks[seed] = chunk._replace(pupils=[replace(chunk.pupils[0], **known)])


def test_the_best_seed_goes_on_if_any_does_and_has_a_number_if_any_has(tiny):
    three = agent(tiny)
    assert three.best.seed == 0
    changed(three, 0, evaluated=9.0, stopped="the data of episode 1: not a finite number")
    assert three.best.seed == 1  # which goes on, though nobody knows how well
    changed(three, 1, evaluated=float("nan"))
    changed(three, 2, evaluated=-5.0)
    assert three.best.seed == 2
    changed(three, 1, evaluated=1.0, stopped="so")
    changed(three, 2, stopped="so")
    assert three.best.seed == 0  # of those that all have stopped


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (raising(ConnectionError("no motor")), "the environment at the beginning: ConnectionError: no motor"),
        (instead(0, np.zeros(1)), "the environment at the beginning: reset gave an array of shape (1,)"),
        (instead(0, np.array([0.0, np.inf])), "the initial states: not a finite number"),
    ],
)
def test_a_seed_that_cannot_begin_is_stopped_from_the_start_and_stays_so(idle, tiny, whole, tmp_path, fault, why):
    Rig.at_reset = {begins(1, "initial", 0, 7): fault}
    broken = agent(tiny).learn(episodes=1)
    assert list(broken.stopped) == [1] and broken.stopped[1].startswith(why)
    assert lived(broken) == [each for each in of(whole[0], {0, 2}) if each["episode"] <= 1]
    folder = broken.save(tmp_path / "run")
    Rig.at_reset = {begins(0, "initial", 0): fault}
    again = cdpo.load(folder)  # where what was broken is mended, and another is broken
    assert list(again.stopped) == [0, 1] and again.stopped[1] == broken.stopped[1]
    assert [record["seed"] for record in again.learn(episodes=1).records[len(broken.records) :]] == [2]


def test_an_environment_that_cannot_be_made_for_one_seed_stops_it_alone(idle, tiny):
    made = []

    def factory():
        made.append(len(made))
        if len(made) == 3:  # the first is looked at, then there is one for each seed
            raise OSError("no third port")
        return TimeLimit(Rig(), STEPS)

    broken = agent(tiny, task=find_task(factory)).learn(episodes=1)
    [why] = broken.stopped.values()
    assert why == "the environment at the beginning: OSError: no third port"
    assert len(broken.records) == 4
    [lost] = broken.stopped
    with pytest.raises(UserError, match="no third port"):
        broken[lost].evaluate(1)


def test_if_no_seed_can_begin_it_is_the_users_mistake_and_nothing_is_written(tmp_path, capsys):
    Rig.at_reset = {begins(seed, "initial", 0): raising(ConnectionError("no motor")) for seed in range(2)}
    assert _run(["train", "Rig-v0", "--seeds", "2", "--out", str(tmp_path / "run")]) == 2
    told = capsys.readouterr().err
    assert told.startswith("cdpo: Rig-v0 cannot begin: the environment at the beginning: ConnectionError: no motor; ")
    assert told.count("\n") == 1 and list(tmp_path.iterdir()) == []


def test_an_environment_that_is_shared_serves_the_other_seeds_after_it_failed_in_one(idle, tiny, whole):
    shared = find_task(TimeLimit(Rig(), STEPS))
    assert shared.shared
    Rig.at_step = {begins(1, "training", 1): raising(ValueError("tangled"))}
    broken = agent(tiny, task=shared).learn(episodes=3)
    assert broken.stopped == {1: "the environment in episode 1: ValueError: tangled"}
    assert of(lived(broken), {0, 2}) == of(whole[0], {0, 2})


def test_an_environment_that_falls_silent_stops_its_seed_and_the_others_are_saved(idle, tiny, whole, tmp_path):
    release = threading.Event()
    watched = agent(tiny, task=find_task("Rig-v0", env_timeout=600))
    watched.learn(episodes=1)
    Rig.at_reset = {begins(1, "training", 2): lambda answer: (release.wait(), answer)[1]}
    watched._trainer.pupils[1].environment._seconds = 0.01  # from here on; the others have time
    watched.learn(episodes=2)
    release.set()
    assert watched.stopped == {1: "the environment in episode 2: TimeoutError: did not answer within 0.01 s (reset)"}
    assert of(lived(watched), {0, 2}) == of(whole[0], {0, 2})
    assert lived(cdpo.load(watched.save(tmp_path / "run"), task=TASK)) == lived(watched)


def test_a_stretch_that_fails_takes_the_whole_episode_with_it(tiny, idle):
    Rig.at_step = {begins(0, "training", 1): raising(ValueError("lost"))}
    broken = agent(tiny, 1, loop={**tiny["loop"], "stretch": 2}).learn(episodes=1)
    assert broken.stopped == {0: "the environment in episode 1: ValueError: lost"}
    assert [len(rows) for rows in broken._trainer.rows()] == [STEPS]


def test_nobody_acts_on_what_is_no_number():
    """The environment asserts it of its actions; a policy is not asked."""

    class Policy:
        seen: list = []  # noqa: RUF012

        def begin(self, episode):
            pass

        def __call__(self, observation, noise=None):
            self.seen.append(observation)
            return np.full(1, np.nan) if len(self.seen) > 4 else np.zeros(1)

    policy, rig = Policy(), TASK.make()
    first = begins(0, "evaluation", 0)
    Rig.at_step = {first: instead(0, np.array([np.nan, 0.0]))}
    assert np.isnan(collect.evaluation(rig, TASK, policy, 0, 0, 1)).all()
    assert len(policy.seen) == 3 and np.isfinite(policy.seen).all()
    Rig.at_reset = {first: instead(0, np.array([np.nan, 0.0]))}
    assert np.isnan(collect.evaluation(rig, TASK, policy, 0, 0, 1)).all()
    assert len(policy.seen) == 3 and rig.unwrapped.count == 0
    Rig.at_reset, Rig.at_step = {}, {}
    assert np.isnan(collect.evaluation(rig, TASK, policy, 0, 0, 1)).all()  # by its second action
    assert rig.unwrapped.count == 1


def test_an_environment_may_write_over_its_observation(idle, tiny, whole):
    class Buffer(Rig):
        def reset(self, **options):
            place, info = super().reset(**options)
            self.buffer = getattr(self, "buffer", np.zeros(2, np.float32))
            self.buffer[:] = place
            return self.buffer, info

        def step(self, action):
            place, *rest = super().step(action)
            self.buffer[:] = place
            return self.buffer, *rest

    found = agent(tiny, 1, task=find_task(Buffer, horizon=STEPS)).learn(episodes=1)._trainer
    np.testing.assert_array_equal(found.rows()[0], whole[1][0][: 2 * STEPS])
    np.testing.assert_array_equal(found.chunks[0].initial, agent(tiny, 1)._trainer.chunks[0].initial)


@pytest.fixture
def folder(idle, tiny, tmp_path):
    return agent(tiny).learn(episodes=1).save(tmp_path / "run")


def evaluated(capsys, *words):
    code = _run(["evaluate", *map(str, words)])
    return code, *capsys.readouterr()


def test_an_evaluation_is_strict_json_and_names_the_seeds_that_failed(folder, capsys):
    whole = strict(evaluated(capsys, folder, "--json", "--episodes", 2)[1])
    Rig.at_step = {
        begins(0, "evaluation", LATER, 1): instead(1, np.nan),
        begins(2, "evaluation", LATER, 1): raising(OSError("gone")),
    }
    code, out, err = evaluated(capsys, folder, "--json", "--episodes", 2)
    bad, sound, failed = strict(out)["seeds"]
    assert code == 3 and sound == whole["seeds"][1]
    assert bad["mean"] is None and bad["returns"] == [whole["seeds"][0]["returns"][0], None]
    assert failed["mean"] is None and failed["returns"] == [] and "OSError: gone" in failed["failed"]
    assert [line.split(":")[1] for line in err.splitlines()] == [" seed 0", " seed 2"]
    code, out, err = evaluated(capsys, folder, "--episodes", 2)
    assert code == 3 and len(out.splitlines()) == 1 and out.startswith("seed 1: ") and err.count("\n") == 2
    Rig.at_step = {begins(seed, "evaluation", LATER): raising(OSError("gone")) for seed in range(3)}
    code, out, err = evaluated(capsys, folder, "--json")
    assert code == 2 and out == "" and err.startswith("cdpo: the environment failed: OSError: gone; ")


def test_an_agent_is_evaluated_but_for_the_seeds_that_fail(idle, tiny):
    whole = agent(tiny).learn(episodes=1)
    expected = whole.evaluate(2)
    Rig.at_step = {begins(0, "evaluation", LATER, 1): instead(1, np.nan)}
    Rig.at_step[begins(1, "evaluation", LATER)] = raising(OSError("gone"))
    with pytest.warns(RuntimeWarning, match="^seed 1: the environment failed: OSError: gone; "):
        found = whole.evaluate(2)
    expected[0, 1] = expected[1] = np.nan
    np.testing.assert_array_equal(found, expected)
    with pytest.raises(UserError, match="OSError: gone"):
        whole[1].evaluate(1)
    with pytest.raises(UserError, match="episodes must be at least 1"):
        whole.evaluate(-1)


@pytest.mark.parametrize("known", ["reward", "terminates"])
@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda s, a, following: following[..., 7:].sum(), "gives shape ()"),
        (lambda s, a, following: following, "gives shape (2, 3, 2)"),
        (lambda s, a, following: float(following[0, 0, 0]), "fails for Rig-v0: ConcretizationTypeError"),
        (lambda s, a: s, "fails for Rig-v0: TypeError"),
    ],
)
def test_functions_of_transitions_that_do_not_fit_are_refused_on_one_line(known, function, says):
    with pytest.raises(UserError) as caught:
        find_task("Rig-v0", **{known: function})
    assert str(caught.value).startswith(f"{known} {says}") and str(caught.value).isprintable()


def test_a_known_reward_that_is_no_number_is_found_by_the_check():
    task = find_task("Rig-v0", reward=lambda s, a, following: following[..., 0] / 0)
    assert any(f"no finite number at {3 * STEPS} of {3 * STEPS} steps" in each for each in check_task(task).problems)


def pays_nothing(s, a, following):
    return following[..., 0] * np.nan


def test_the_function_that_gives_bad_numbers_on_real_steps_is_named():
    rows, fine = jnp.ones((3, TASK.observations * 2 + TASK.actions + 2)), lambda s, a, following: a[..., 0]
    assert bad_function(TASK, rows) is None
    assert bad_function(find_task("Rig-v0", reward=fine, terminates=fine), rows) is None
    assert bad_function(find_task("Rig-v0", reward=pays_nothing, terminates=fine), rows) == "reward function"
    assert bad_function(find_task("Rig-v0", reward=fine, terminates=pays_nothing), rows) == "terminates function"


@pytest.mark.slow
def test_a_function_that_gives_bad_numbers_is_what_its_seeds_are_stopped_by(tiny):
    stopped = agent(tiny, 1, reward=pays_nothing).learn(episodes=1).stopped
    assert stopped == {0: "the reward function in iteration 1: not a finite number"}


def test_the_check_survives_an_environment_that_fails_at_its_end_or_has_no_spaces():
    class Sticky(Rig):
        def close(self):
            raise RuntimeError("stuck")

    assert check_task(find_task(Sticky, horizon=STEPS)).ok

    class Bare(gymnasium.Env):
        pass

    with pytest.raises(UserError, match="not a vector of numbers"):
        find_task(Bare, horizon=STEPS)
    with pytest.raises(UserError, match=r"^cannot make the environment: OSError: not plugged in$"):
        find_task(lambda: raising(OSError("not plugged in"))(None))


def test_a_check_of_an_environment_does_not_wait_for_it(capsys, monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(Rig, "reset", lambda self, **_: release.wait())
    assert _run(["check-env", "Rig-v0", "--env-timeout", "0.01"]) == 2
    release.set()
    assert "running it failed: TimeoutError: did not answer within 0.01 s (reset)" in capsys.readouterr().err


def test_a_run_in_which_a_seed_fails_is_finished_with_exit_code_3(idle, tmp_path, capsys):
    Rig.at_step = {begins(1, "training", 1): raising(ValueError("lost the motor"))}
    run = tmp_path / "run"
    assert _run(["train", "Rig-v0", "--seeds", "2", "--episodes", "2", "--out", str(run)]) == 3
    told = capsys.readouterr().err
    assert "cdpo: seed 1 was stopped by the environment in episode 1: ValueError: lost the motor\n" in told
    records = [strict(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [(each["seed"], each["episode"]) for each in records] == [(0, 0), (1, 0), (0, 1), (0, 2)]


def test_a_run_of_which_every_seed_fails_in_its_first_episode_is_finished_too(tmp_path, capsys):
    Rig.at_step = {begins(seed, "training", 0): raising(ValueError("lost")) for seed in range(2)}
    run = tmp_path / "run"
    assert _run(["train", "Rig-v0", "--seeds", "2", "--episodes", "2", "--out", str(run)]) == 3
    told = [line for line in capsys.readouterr().err.splitlines() if "stopped" in line]
    where = "was stopped by the environment in episode 0: ValueError: lost"
    assert told == [f"cdpo: seed {seed} {where}" for seed in range(2)]
    assert _run(["report", str(run)]) == 0
