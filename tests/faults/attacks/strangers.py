"""Folders that a stranger made: nothing outside is changed, or read into anything, nothing hangs, no module runs."""

import json
import os
import random
import shutil
import socket
import stat
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import cdpo
from attacks.answers import limit_memory
from attacks.base import MISTAKE, Ended, run
from attacks.calls import Calls, crash
from attacks.crashes import count_calls
from attacks.world import MORE, WORDS, World, cdpo_main, stubbed, train
from cdpo.errors import UserError
from cdpo.runs import RunFolder

GOLDEN = Path(__file__).parents[2] / "golden" / "0.1.0"
SECRET = "a secret that is nobody's business"
MEMORY = 4 << 30  # bytes more than a command has at first
LONG = 45.0  # seconds after which a command hangs
HIDDEN = ".cdpo-0123456789abcdef0123456789abcdef.tmp"  # as what a crash leaves

# Places of files and of folders in a run, and the commands that cannot do without what is there.
FILES = {
    "config.json": ("resume", "longer", "evaluate", "report", "load", "policy"),
    "metrics.jsonl": ("resume", "longer", "report", "load"),
    "checkpoints/state.npz": ("resume", "longer", "load", "policy"),
    "checkpoints/replay-0.bin": ("resume", "longer", "load"),
    "checkpoints/replay-1.bin": ("resume", "longer", "load"),
    "checkpoints/state-before.npz": (),
    "summary.json": (),
    "events.out.tfevents.0000000000.cdpo": (),
    ".lock": (),
    "report.html": (),
    "figures/returns.svg": (),
    HIDDEN: (),
    f"checkpoints/{HIDDEN}": (),
}
FOLDERS = ("checkpoints", "figures")
COMMANDS = ("resume", "resume", "longer", "longer", "report", "load", "policy", "save", "train", "evaluate")
LINKS = ("to a file", "to its likeness", "to nothing", "to a folder", "a second name")
THINGS = ("pipe", "socket", "device", "the other kind", "closed to all")
OTHERS = ("odd names", "modules", "a named module")


class Strangers:
    """A thing in a place of a finished run or of one that was killed, and a command on it."""

    whole: ClassVar[int] = 100

    def __init__(self, home: Path) -> None:
        self.world, half = World(home), home / "half"
        calls = count_calls(home / "counted")
        assert train(half, within=Calls(home, crash(3 * calls // 4, "before")).entered).killed
        self.runs = {"finished": self.world.folder, "killed": half}
        with zipfile.ZipFile(GOLDEN / "policy-of-one-seed.zip") as archive:
            archive.extractall(home / "policy")
        self.policy = home / "policy" / "run"

    def trial(self, seed: int, folder: Path) -> str | None:
        chance, place, victim = random.Random(seed), folder / "run", folder / "victim"
        name, state = chance.choice(COMMANDS), chance.choice(list(self.runs))
        shutil.copytree(self.policy if name == "evaluate" else self.runs[state], place)
        _make_victim(victim)
        what, needed = _craft(place, victim, chance)
        before = _seen(victim)
        ended = run(lambda: _command(name, place, self.world.folder), LONG)
        failure = _judged(ended, name in needed) or (None if _seen(victim) == before else "the victim is changed")
        failure = failure or _leak(folder, ended)
        return f"{name} of a {state} run with {what}: {failure}" if failure else None


def _judged(ended: Ended, refused: bool) -> str | None:
    """What is wrong with an answer: one that cannot do without what is there has to refuse it."""
    if ended.code == 0 and not refused:
        return None
    return None if ended.code == MISTAKE and ended.in_one_line else f"{ended}"


def _leak(folder: Path, ended: Ended) -> str | None:
    """Where the secret is seen."""
    if SECRET in ended.out + ended.err:
        return "the secret is said"
    for path in folder.rglob("*"):
        ours = "victim" not in path.parts and stat.S_ISREG(path.lstat().st_mode) and path.stat().st_nlink == 1
        if ours and SECRET.encode() in path.read_bytes():
            return f"the secret is in {path.name}"
    return None


def _make_victim(victim: Path) -> None:
    """What is not the stranger's."""
    (victim / "folder").mkdir(parents=True)
    for path in (
        victim / "file",
        victim / "folder" / "state.npz",
        victim / "folder" / HIDDEN,
        victim / "folder" / "x.svg",
    ):
        path.write_text(SECRET)


def _seen(victim: Path) -> dict[str, Any]:
    """All there is of it, but for when it was read."""
    found = {}
    for path in sorted(victim.rglob("*")):
        told = path.lstat()
        content = path.read_bytes() if path.is_file() else None
        found[str(path)] = (told.st_mode, told.st_ino, told.st_size, told.st_mtime_ns, content)
    return found


def _craft(run: Path, victim: Path, chance: random.Random) -> tuple[str, tuple[str, ...]]:
    """Puts something into a run; what, and which commands must refuse it."""
    kind = chance.choice([*LINKS, *LINKS, *THINGS, *OTHERS])
    if kind in OTHERS:
        _add(run, victim, kind)
        return kind, ()
    if kind == "to a folder" or (kind in THINGS and chance.random() < 0.2):
        name = chance.choice(FOLDERS)
        needed = ("resume", "longer", "load", "policy", "evaluate") if name == "checkpoints" else ()
    else:
        name = chance.choice([*FILES, *[each for each, needing in FILES.items() if needing]])
        needed = FILES[name]
    _put(run / name, victim, kind, run)
    if kind == "closed to all":
        needed = ()  # to root nothing is
    return f"{kind} as {name}", needed


def _put(place: Path, victim: Path, kind: str, run: Path) -> None:
    """Something in a place of a run."""
    place.parent.mkdir(exist_ok=True)
    there = place.is_file() or place.is_dir()
    match kind:
        case "to its likeness":
            if there:
                place.rename(victim / "likeness")
            place.symlink_to(victim / "likeness")
            return
        case "closed to all":
            if there:
                place.chmod(0)
            return
    other = place.is_file()
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)
    match kind:
        case "to a file":
            place.symlink_to(victim / "file")
        case "a second name":
            os.link(victim / "file", place)
        case "to nothing":
            place.symlink_to(victim / "made")
        case "to a folder":
            place.symlink_to(victim / "folder")
        case "pipe":
            os.mkfifo(place)
        case "socket":
            with socket.socket(socket.AF_UNIX) as opened:
                opened.bind(os.path.relpath(place))
        case "device":
            _device(place)
        case "the other kind":
            place.mkdir() if other else place.write_text("a file\n")


def _device(place: Path) -> None:
    """One without an end, where that may be made."""
    try:
        os.mknod(place, 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    except PermissionError:
        os.mkfifo(place)


def _add(run: Path, victim: Path, kind: str) -> None:
    """Something more in a run."""
    if kind == "odd names":
        for folder in (run, run / "checkpoints", run / "figures"):
            folder.mkdir(exist_ok=True)
            for name in (b"\xff\xfe", b"a\nb", b"\x1b[2J", b"replay-\xc3.bin", b".cdpo-\xff.tmp", b"x" * 255):
                (folder / os.fsdecode(name)).write_text("odd")
        return
    planted = f"open({str(victim / 'planted')!r}, 'w').close()\nmake = lambda: None\n"
    for name in ("planted.py", "cdpo.py", "json.py", "numpy.py", "sitecustomize.py", "checkpoints/planted.py"):
        (run / name).write_text(planted)
    if kind == "a named module":
        config = {**RunFolder(run).config, "task": "planted:make", "crc32": None}
        (run / "config.json").write_text(json.dumps(config, indent=2))


def _command(name: str, place: Path, whole: Path) -> int | None:
    """In a process whose working directory is the stranger's folder, where Python would look for modules first."""
    limit_memory(MEMORY)  # a device may have no end
    os.chdir(place)
    sys.path.insert(0, "")
    if name == "evaluate":
        cdpo_main("evaluate", str(place), "--episodes", "1")
    with stubbed(figures=True):
        match name:
            case "resume":
                cdpo_main("resume", str(place))
            case "longer":
                cdpo_main("resume", str(place), "--episodes", str(MORE))
            case "report":
                cdpo_main("report", str(place))
            case "train":
                cdpo_main(*WORDS, "--out", str(place))
        return _told(_API[name], place, whole)


_API: dict[str, Callable[[Path, Path], Any]] = {
    "load": lambda place, whole: cdpo.load(place),
    "policy": lambda place, whole: cdpo.load(place, policy_only=True),
    "save": lambda place, whole: cdpo.load(whole).save(place),
}


def _told(call: Callable[[Path, Path], Any], place: Path, whole: Path) -> int:
    """What Python raises, as the command line would say it."""
    try:
        call(place, whole)
    except UserError as error:
        print(f"cdpo: {error}", file=sys.stderr)
        return MISTAKE
    return 0
