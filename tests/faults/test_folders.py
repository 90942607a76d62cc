"""What is in a run folder stays there, and whole: one writer, no links, nothing removed, nothing changed unseen."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from attacks import world
from attacks.base import MISTAKE, Child

import cdpo
from cdpo import lock, signals
from cdpo.errors import Notice, UserError
from cdpo.report import build_page
from cdpo.runs import RunFolder
from cdpo.training import checkpoints

SRC = Path(__file__).parents[2] / "src"


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


@pytest.fixture(autouse=True)
def heeded():
    """Signals as a terminal has them: what runs in the background may have been told to ignore some."""
    usual = dict.fromkeys(signals.ENDING, signal.SIG_DFL) | {signal.SIGINT: signal.default_int_handler}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A run that has finished."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert world.train(folder).code == 0
    return folder


@pytest.fixture
def run(whole, tmp_path) -> Path:
    """One of its own for each test."""
    return shutil.copytree(whole, tmp_path / "run")


@pytest.fixture
def cut(tmp_path) -> Path:
    """A run that ended after its second episode, as by Ctrl-C."""

    class Enough:
        def __enter__(self):
            write = cdpo.training.run.Journal.write

            def last(kept, lived):
                write(kept, lived)
                if kept.trainer.episode == 2:
                    os.kill(os.getpid(), signal.SIGINT)

            cdpo.training.run.Journal.write = last

        def __exit__(self, *exception):
            return None

    folder = tmp_path / "cut"
    ended = world.train(folder, within=Enough)
    assert ended.code == 130 and ended.err.count("\n") == 1, ended
    return folder


def same(one: Path, other: Path) -> None:
    with world.stubbed():
        assert world.told(one) == world.told(other)


# One writer


def test_while_one_process_writes_no_other_does_or_sweeps_what_is_half_written(run):
    half = run / f".cdpo-{'0' * 32}.tmp"
    with RunFolder(run).writing():
        half.write_text("of the one that writes")
        before = contents(run)
        for ended in (world.resume(run), world.resume(run, 2), world.command("resume", str(run), "--restart")):
            assert ended.code == MISTAKE and ended.in_one_line
        ended = world.resume(run, 2)
        assert f"is being written by process {os.getpid()} on " in ended.err
        assert contents(run) == before
        with world.stubbed():
            assert cdpo.load(run).episodes == world.EPISODES + 1  # readers need no lock
    assert world.resume(run, 2).code == 0 and not half.exists()


def test_a_file_that_a_dead_process_left_locks_nothing_nor_do_its_children(run):
    reads, tells = os.pipe()
    waits, ends = os.pipe()

    def hold():
        with RunFolder(run).writing():
            if not os.fork():
                os.write(tells, b"born")
                os.read(waits, 1)
                os._exit(0)
            threading.Event().wait()

    holder = Child(hold)
    try:
        assert os.read(reads, 4) == b"born"
        with pytest.raises(UserError, match="is being written"), RunFolder(run).writing():
            pass
    finally:
        holder.kill()
        holder.wait()
    with RunFolder(run).writing():
        pass
    os.write(ends, b".")


def test_one_that_was_taken_over_from_writes_no_more(run):
    first, second, went_on = RunFolder(run), RunFolder(run), []

    def take_over():
        with second.writing(taking_over=True):
            went_on.append(second.path)

    with first.writing():
        taker = threading.Thread(target=take_over)
        taker.start()
        with pytest.raises(UserError, match="was taken over by process"):
            while True:
                first.write_config(first.config)
        assert not went_on  # not beside it
    taker.join()
    assert went_on == [run]


def test_of_several_that_take_over_the_last_one_does(run):
    earlier = lock.Lock(run)
    with RunFolder(run).writing(taking_over=True), pytest.raises(UserError, match="was taken over"):
        earlier.check()


def test_a_folder_that_cannot_be_locked_says_so_and_is_written(run, monkeypatch):
    def refused(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock.fcntl, "flock", refused)
    with pytest.warns(Notice, match="cannot be locked"), RunFolder(run).writing():
        pass


# Nothing is removed


def test_a_run_whose_metrics_are_damaged_is_refused_before_anything_is_changed(run):
    path = run / "metrics.jsonl"
    path.write_text(path.read_text().replace('"seed": 1', '"seed": 7', 1))
    before = contents(run)
    ended = world.resume(run, 2)
    assert ended.code == MISTAKE and ended.in_one_line and "line 2: its checksum does not match" in ended.err
    assert {name: data for name, data in contents(run).items() if name.name != "config.json"} == {
        name: data for name, data in before.items() if name.name != "config.json"
    }  # which says already what was asked for


def test_resume_without_a_checkpoint_removes_nothing_and_says_what_is_missing(run):
    for name in ("state.npz", "state-before.npz"):
        (run / "checkpoints" / name).unlink()
    (run / "checkpoints" / "my-backup.npz").write_text("mine")
    (run / "summary.json").unlink()
    before = contents(run)
    ended = world.resume(run)
    assert ended.code == MISTAKE and ended.in_one_line
    assert "no checkpoints/state.npz to go on from" in ended.err and "--restart" in ended.err
    assert contents(run) == before


def test_restart_sets_aside_what_the_library_wrote_and_nothing_else(run, whole):
    (run / "checkpoints" / "my-backup.npz").write_text("mine")
    old = contents(run)
    (run / "checkpoints" / "my-backup.npz").rename(run / "mine")
    ended = world.command("resume", str(run), "--restart")
    assert ended.code == 0 and "before-restart-1" in ended.err
    same(run, whole)
    aside = run / "before-restart-1"
    for name in ("metrics.jsonl", "summary.json", "checkpoints/state.npz", "checkpoints/replay-1.bin"):
        assert (aside / name).read_bytes() == old[run / name]
    assert (run / "mine").read_text() == "mine"


def test_a_damaged_checkpoint_gives_way_to_the_one_before_aloud(run, whole):
    path = run / "checkpoints" / "state.npz"
    path.write_bytes(path.read_bytes()[:-100])
    with world.stubbed(), pytest.warns(Notice, match=r"the one before it does: .*state\.npz' is damaged"):
        assert cdpo.load(run).episodes == world.EPISODES
    (run / "summary.json").unlink()
    ended = world.resume(run)
    assert ended.code == 0 and ended.err.startswith("cdpo: the newest checkpoint cannot serve")
    same(run, whole)


def test_so_it_does_where_the_end_of_a_log_is_lost(run, whole):
    path = run / "checkpoints" / "replay-0.bin"
    path.write_bytes(path.read_bytes()[:-10])
    (run / "summary.json").unlink()
    assert world.resume(run).code == 0
    same(run, whole)


def test_a_damaged_checkpoint_never_takes_the_place_of_a_good_one(run):
    state, before = (run / "checkpoints" / name for name in ("state.npz", "state-before.npz"))
    state.write_bytes(b"")
    good = before.read_bytes()
    (run / "summary.json").unlink()

    class Dies:
        def __enter__(self):
            os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)

        def __exit__(self, *exception):
            return None

    ended = world.resume(run, within=Dies)
    assert ended.killed
    assert before.read_bytes() == good


# Links


@pytest.mark.parametrize(
    "name", ["checkpoints", "checkpoints/state.npz", "checkpoints/replay-0.bin", "metrics.jsonl", "summary.json",
             "config.json", "events.out.tfevents.0000000000.cdpo", "figures", ".lock"],
)  # fmt: skip
def test_nothing_is_read_written_or_removed_through_a_link(cut, tmp_path, name):
    (cut / "figures").mkdir(exist_ok=True)
    if name == "summary.json":
        (cut / name).write_text("{}")
    victim = tmp_path / "victim"
    (cut / name).rename(victim)
    (cut / name).symlink_to(victim)
    before = contents(tmp_path)
    ended = world.resume(cut, figures=True)
    assert ended.code == MISTAKE and ended.in_one_line and "is a link" in ended.err, ended
    theirs = {path: data for path, data in before.items() if path.is_relative_to(victim)}
    assert theirs.items() <= contents(tmp_path).items()


def test_a_run_folder_may_be_a_link_itself(run, tmp_path):
    (tmp_path / "link").symlink_to(run)
    assert world.resume(tmp_path / "link", 1).code == 0


@pytest.mark.parametrize("name", ["checkpoints/state.npz", "metrics.jsonl", "config.json", "checkpoints/replay-1.bin"])
def test_a_pipe_is_refused_and_not_waited_for(cut, name):
    (cut / name).unlink()
    os.mkfifo(cut / name)
    ended = world.resume(cut)
    assert ended.code == MISTAKE and ended.in_one_line and "is not a regular file" in ended.err, ended


PLACES = ("checkpoints/state.npz", "checkpoints/state-before.npz", "metrics.jsonl", "summary.json")


@pytest.mark.parametrize("name", PLACES)
def test_a_folder_in_the_place_of_a_file_is_refused_before_anything_is_done(cut, name):
    (cut / name).unlink(missing_ok=True)
    (cut / name).mkdir()
    before = contents(cut)
    ended = world.resume(cut)
    assert ended.code == MISTAKE and ended.in_one_line and "is a folder" in ended.err, ended
    assert contents(cut) == before


def test_a_file_with_a_second_name_is_not_changed_in_place(cut, tmp_path):
    os.link(cut / "metrics.jsonl", tmp_path / "backup")
    before = (tmp_path / "backup").read_bytes()
    ended = world.resume(cut)
    assert ended.code == MISTAKE and "has a second name" in ended.err
    assert (tmp_path / "backup").read_bytes() == before


# What is asked for


def test_an_interrupted_extension_goes_on_as_it_says(run, tmp_path):
    class Struck:
        def __enter__(self):
            write = cdpo.training.run.Journal.write

            def struck(kept, lived):
                write(kept, lived)
                os.kill(os.getpid(), signal.SIGINT)

            cdpo.training.run.Journal.write = struck

        def __exit__(self, *exception):
            return None

    ended = world.resume(run, 2, within=Struck)
    assert ended.code == 130 and f"cdpo resume {run}" in ended.err
    assert world.resume(run).code == 0
    longer = tmp_path / "longer"
    assert world.train(longer).code == world.resume(longer, 2).code == 0
    same(run, longer)
    assert "has finished" in world.resume(run).err


# Signals


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_signal_in_the_middle_of_writing_is_heeded_when_all_is_saved(tmp_path, whole, name, code):
    class Comes:
        def __enter__(self):
            append = cdpo.training.log.Log.append

            def struck(log, rows):
                append(log, rows)
                if log.rows == 2 * world.HORIZON:
                    os.kill(os.getpid(), getattr(signal, name))

            cdpo.training.log.Log.append = struck

        def __exit__(self, *exception):
            return None

    folder = tmp_path / "run"
    ended = world.train(folder, patience=100.0, within=Comes)
    assert ended.code == code
    assert ended.err == f"interrupted; what has finished is saved, go on with: cdpo resume {folder}\n"
    assert checkpoints.read_state(RunFolder(folder), checkpoints.STATE).episode == 2
    assert world.resume(folder).code == 0
    same(folder, whole)


def test_where_nobody_handles_signals_nothing_changes():
    before = {number: signal.getsignal(number) for number in signals.ENDING}
    with pytest.raises(KeyboardInterrupt), signals.shielded():
        os.kill(os.getpid(), signal.SIGINT)
        reached = True
    assert reached
    assert {number: signal.getsignal(number) for number in signals.ENDING} == before


STARTING = """
import builtins, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a background shell takes away
real, number = builtins.__import__, getattr(signal, sys.argv[1])
def struck(name, *rest):
    if name == "jax":
        os.kill(os.getpid(), number)
    return real(name, *rest)
from cdpo.__main__ import main
builtins.__import__ = struck
sys.argv = ["cdpo", "--version"]
main()
"""


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_while_the_program_starts_ends_it_without_a_word(name, code):
    words = [sys.executable, "-c", STARTING, name]
    ended = subprocess.run(words, env={**os.environ, "PYTHONPATH": str(SRC)}, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr[-500:]) == (code, "", "")


# Modules


def test_a_module_is_imported_if_the_user_names_it_and_never_from_the_folder(cut, tmp_path, edited):
    word = "planted:cdpo/PendulumSwingup-v0"
    edited(cut / "config.json", task=word)
    for home in (cut, tmp_path):
        (home / "planted.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')")

    def resumed(home: Path, *words: str):
        class Here:
            def __enter__(self):
                os.chdir(home)
                sys.path.insert(0, "")

            def __exit__(self, *exception):
                return None

        return world.command("resume", str(cut), *words, within=Here)

    refused = resumed(tmp_path)
    assert refused.code == MISTAKE and "is not imported for a folder" in refused.err
    planted = resumed(cut, "--task", word)
    assert planted.code == MISTAKE and f"'planted' is in '{cut}'" in planted.err
    other = resumed(tmp_path, "--task", "pendulum-swingup")
    assert other.code == MISTAKE and "goes on with that; leave" in other.err
    assert not (tmp_path / "imported").exists()
    assert resumed(tmp_path, "--task", word).code == 0 and (tmp_path / "imported").exists()


# Checksums


@pytest.mark.parametrize("name", ["metrics.jsonl", "config.json", "summary.json"])
def test_a_digit_that_changed_is_told_and_an_owner_may_change_it_on_purpose(run, name):
    path = run / name
    text = path.read_text()
    place = text.index(": ", text.index("env_steps" if name != "config.json" else '"seeds"')) + 2
    place += text[place:].index("2")
    path.write_text(f"{text[:place]}3{text[place + 1 :]}")
    with world.stubbed():
        readers = [lambda: build_page([RunFolder(run)])]
        if name != "summary.json":
            readers.append(lambda: cdpo.load(run))
        for reads in readers:
            with pytest.raises(UserError, match="its checksum does not match; if you edited it yourself, write null"):
                reads()
    if name == "metrics.jsonl":
        changed = path.read_text().splitlines()
        lines = [json.loads(line) for line in changed]
        path.write_text("".join(json.dumps({**line, "crc32": None}) + "\n" for line in lines))
        build_page([RunFolder(run)])
