"""An environment that does not answer is not waited for."""

import gc
import subprocess
import sys
import threading
import weakref

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box
from gymnasium.wrappers import TimeLimit

from cdpo.errors import UserError
from cdpo.tasks import find_task
from cdpo.tasks.watching import Watched

BRIEF, LONG = 0.02, 600.0  # seconds: of what never answers, and of what does so at once


class Motor(gymnasium.Env):
    """Waits in the given step until it is let go, and tells which threads have called it."""

    observation_space = Box(-1, 1, (2,), np.float32)
    action_space = Box(-1, 1, (1,), np.float32)

    def __init__(self, stuck=None):
        self.stuck, self.go, self.threads, self.closed = stuck, threading.Event(), set(), False

    def _at(self, where):
        self.threads.add(threading.current_thread())
        if where == self.stuck:
            self.go.wait()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        self._at(0)
        return np.zeros(2, np.float32), {"seed": seed}

    def step(self, action):
        self.count += 1
        self._at(self.count)
        if action[0] > 1:
            raise ValueError("too much")
        return np.full(2, self.count, np.float32), float(action[0]), False, False, {}

    def close(self):
        self.closed = True


def lived(env, steps):
    rows = [env.reset(seed=3)[0]]
    for _ in range(steps):
        rows.append(env.step(np.float32([0.5]))[0])
    return np.stack(rows)


def test_a_watched_environment_does_as_it_does_unwatched_on_one_thread_of_its_own():
    motor = Motor()
    np.testing.assert_array_equal(lived(Watched(motor, LONG), 3), lived(Motor(), 3))
    assert len(motor.threads) == 1 and motor.threads != {threading.current_thread()}
    assert all(thread.daemon for thread in motor.threads)


@pytest.mark.parametrize(("stuck", "where"), [(0, "reset"), (2, "step 2")])
def test_what_does_not_answer_in_time_is_an_error_that_says_where_then_and_ever_after(stuck, where):
    motor = Motor(stuck)
    env = Watched(motor, LONG)
    if stuck:
        lived(env, stuck - 1)
    env._seconds = BRIEF  # what answers has time, however busy the machine
    with pytest.raises(TimeoutError, match=rf"^did not answer within 0\.02 s \({where}\)$"):
        env.step(np.zeros(1)) if stuck else env.reset()
    for again in (env.reset, lambda: env.step(np.zeros(1))):
        with pytest.raises(TimeoutError, match=rf"\({where}\)$"):
            again()
    env.close()
    assert not motor.closed  # a call that has not returned is still within it
    motor.go.set()


def test_a_late_answer_is_not_taken_for_another():
    motor = Motor(2)
    env = Watched(motor, LONG)
    env.reset()
    env.step(np.zeros(1))

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    calls = env._calls
    env._calls = type("Calls", (), {"put": lambda self, call: (calls.put(call), interrupted())})()
    with pytest.raises(KeyboardInterrupt):
        env.step(np.zeros(1))  # waits on its thread
    env._calls = calls
    motor.go.set()
    assert env.reset(seed=5)[1] == {"seed": 5}


def test_what_an_environment_raises_is_raised_and_it_goes_on():
    env = Watched(Motor(), LONG)
    env.reset()
    with pytest.raises(ValueError, match="too much"):
        env.step(np.float32([2]))
    assert len(lived(env, 2)) == 3


def test_a_thread_ends_with_its_environment():
    motors = [Motor(), Motor()]
    closed, forgotten = (Watched(motor, LONG) for motor in motors)
    lived(closed, 1), lived(forgotten, 1)
    closed.close()
    assert motors[0].closed
    gone = weakref.ref(forgotten)
    del forgotten
    gc.collect()
    assert gone() is None
    for motor in motors:
        [thread] = motor.threads
        thread.join()


def test_the_end_of_a_process_does_not_wait_for_an_environment():
    program = """
import threading, gymnasium, numpy as np
from cdpo.tasks.watching import Watched
class Stuck(gymnasium.Env):
    def reset(self, *, seed=None, options=None):
        threading.Event().wait()
try:
    Watched(Stuck(), 0.02).reset()
except TimeoutError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "did not answer within 0.02 s (reset)\n", "")


def test_a_task_can_have_its_environments_watched():
    task = find_task("pendulum-swingup", horizon=4, env_timeout=LONG)
    first, second = task.make(), task.make()
    assert isinstance(first, Watched) and first is not second
    first.reset(seed=0)
    assert [first.step(np.zeros(1, np.float32))[3] for _ in range(4)] == [False, False, False, True]
    assert not isinstance(find_task("pendulum-swingup", horizon=4).make(), Watched)
    shorter = find_task(task, horizon=2)
    shorter.make().reset(seed=0)
    assert shorter.horizon == 2


def test_a_shared_environment_has_one_watchdog_for_all():
    motor = Motor(0)
    task = find_task(TimeLimit(motor, 3), env_timeout=BRIEF)
    assert task.shared and task.make() is task.make()
    for _ in range(2):
        with pytest.raises(TimeoutError, match="reset"):
            task.make().reset()
    assert len(motor.threads) == 1  # no second one goes where the first still is
    motor.go.set()


@pytest.mark.parametrize("seconds", [0, -1, True, "3", float("nan"), float("inf"), 10**7])
def test_seconds_that_are_none_are_refused(seconds):
    with pytest.raises(UserError, match="env_timeout is a number of seconds, above 0 and at most 1000000"):
        find_task("pusher", env_timeout=seconds)
