import errno
import io
import os
import sys
import threading

import pytest

from cdpo.progress import Progress


class Clock:
    """Time that passes only when told to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    return Terminal()


def test_without_a_terminal_one_line_for_a_task_that_took_a_while():
    stream, clock = io.StringIO(), Clock()
    with Progress(stream, clock) as progress:
        task = progress.task("chain [N=8] :x:", total=10)
        for step in range(10):
            task.advance(note=f"regret {step}")
        clock.now = 12.34
        assert stream.getvalue() == ""
        task.done()
        task.done()
    assert stream.getvalue() == "chain [N=8] :x:: 12.3 s (regret 9)\n"


def test_without_a_terminal_a_quick_task_leaves_nothing():
    stream, clock = io.StringIO(), Clock()
    with Progress(stream, clock) as progress:
        task = progress.task("quick", total=1)
        task.advance()
        clock.now = 2.0
        task.done()
    assert stream.getvalue() == ""


def test_an_interrupted_task_is_not_reported_as_finished():
    stream, clock = io.StringIO(), Clock()
    with pytest.raises(KeyboardInterrupt), Progress(stream, clock) as progress:
        progress.task("long", total=2).advance()
        clock.now = 100.0
        raise KeyboardInterrupt
    assert stream.getvalue() == ""


def test_a_terminal_sees_label_and_note_and_the_line_that_stays(terminal):
    clock = Clock()
    with Progress(terminal, clock) as progress:
        task = progress.task("chain", total=2)
        task.advance(note="regret 7")
        progress.task("interrupted", total=2).advance(note="half way")
        clock.now = 3.0
        task.done()
        task.advance()  # too late to matter, and no error
    shown = terminal.getvalue()
    assert "chain: 3.0 s (regret 7)" in shown
    assert "interrupted" in shown and "half way" in shown


def test_output_that_is_piped_stays_out_of_the_display(terminal, monkeypatch):
    piped = io.StringIO()
    monkeypatch.setattr(sys, "stdout", piped)
    with Progress(terminal):
        print('{"return": 1}')
    assert piped.getvalue() == '{"return": 1}\n'
    assert "return" not in terminal.getvalue()


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_tasks_in_threads(kind, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("cdpo.progress.WORTH_A_LINE", -1.0)
    stream = kind()
    together = threading.Barrier(4)

    def work(progress, name):
        task = progress.task(name, total=200)
        together.wait()
        for step in range(200):
            task.advance(note=f"step {step}")
        task.done()

    with Progress(stream, Clock()) as progress:
        threads = [threading.Thread(target=work, args=(progress, f"cell {k}")) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for k in range(4):
        assert stream.getvalue().count(f"cell {k}: 0.0 s (step 199)\n") == 1


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_names_and_notes_do_not_command_the_terminal(kind, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream, clock = kind(), Clock()
    with Progress(stream, clock) as progress:
        task = progress.task("task \x1b]0;mine\x07\u202e", total=1)
        task.advance(note="\x9b2J")
        clock.now = 3.0
        task.done()
    assert r"task \x1b]0;mine\x07\u202e: 3.0 s (\x9b2J)" in stream.getvalue()
    assert not any(sign in stream.getvalue() for sign in ("\x1b]0", "\x07", "\u202e", "\x9b"))


@pytest.mark.parametrize("number", [errno.EPIPE, errno.EIO, errno.ENOSPC])
def test_work_goes_on_where_nobody_looks_on_any_more(number):
    class Gone(io.StringIO):
        def write(self, text):
            raise OSError(number, os.strerror(number))

    clock = Clock()
    with Progress(Gone(), clock) as progress:
        for _ in range(2):
            task = progress.task("chain", total=1)
            clock.now += 10.0
            task.done()
