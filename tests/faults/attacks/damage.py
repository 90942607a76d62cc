"""Files of every kind with damage of every kind: they are refused, or give what they gave before."""

import random
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import cdpo
from attacks.answers import wrong_answer
from attacks.golden import GOLDEN, renewed
from attacks.world import World, stubbed
from cdpo.report import build_page
from cdpo.runs import RunFolder
from cdpo.tabular.mdp import load_mdp
from cdpo.training.log import Log
from cdpo.training.schema import upgraded
from cdpo.training.store import load_arrays

BLOCK = 64  # bytes, at most, of damage in one place
PAGE = 25  # every so many trials a whole page is made of a folder


@dataclass(frozen=True)
class Saved:
    """A file that is to be damaged, and how it is read."""

    path: Path
    read: Callable[[], Any]
    may_be_shorter: bool = False  # as a log of which a crash tore the end
    before: Any = None  # what the checkpoint before the newest gives; whoever gets that is told

    def accepts(self, wanted: Any, damage: str) -> Callable[[Any], bool]:
        """Whether what a damaged file gives is what it should."""

        def accepted(found: Any) -> bool:
            if self.may_be_shorter and damage in ("cut", "emptied"):
                return repr(found) == repr(wanted[: len(found)])
            return repr(found) in (repr(wanted), repr(self.before))

        return accepted


def bit(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]


def byte(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data))
    return data[:at] + chance.randbytes(1) + data[at + 1 :]


def cut(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data))]


def inserted(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + chance.randbytes(chance.randint(1, BLOCK)) + data[at:]


def swapped(data: bytes, chance: random.Random) -> bytes:
    one, two, three = sorted(chance.randrange(len(data) + 1) for _ in range(3))
    return data[:one] + data[two:three] + data[one:two] + data[three:]


def zeroed(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data))
    size = min(chance.randint(1, BLOCK), len(data) - at)
    return data[:at] + bytes(size) + data[at + size :]


def emptied(data: bytes, chance: random.Random) -> bytes:
    return b""


def doubled(data: bytes, chance: random.Random) -> bytes:
    one, two = sorted(chance.randrange(len(data) + 1) for _ in range(2))
    return data + data if chance.random() < 0.5 else data[:two] + data[one:two] + data[two:]


DAMAGES = (bit, byte, cut, inserted, swapped, zeroed, emptied, doubled)


class Damage:
    """Every file and every kind of damage in turn."""

    whole: ClassVar[int] = 10_000

    def __init__(self, home: Path) -> None:
        self.train = World(home / "train").folder
        self.tabular = renewed("tabular", home)
        self.reproduction = renewed("reproduction-tabular", home)
        self.saved = [*self._texts(), *self._arrays(home), *_golden(home / "golden"), _mdp(home / "mdp.npz")]
        self.wanted = [saved.read() for saved in self.saved]
        self.pages = {path: build_page([RunFolder(path)]) for path in (self.train, self.tabular, self.reproduction)}

    def trial(self, seed: int, folder: Path) -> str | None:
        chance = random.Random(seed)
        if seed % PAGE == 0:
            return self._page(chance)
        number = seed % len(self.saved)
        saved, damage = self.saved[number], DAMAGES[seed // len(self.saved) % len(DAMAGES)]
        accepted = saved.accepts(self.wanted[number], damage.__name__)
        return _damaged(saved.path, damage, chance, lambda: wrong_answer(saved.read, accepted))

    def _page(self, chance: random.Random) -> str | None:
        """A page of a folder with a damaged file shows what it did, but for figures, which are shown as they are."""
        folder = RunFolder(chance.choice(list(self.pages)))
        paths = sorted(path for path in folder.path.rglob("*") if path.suffix in (".json", ".jsonl", ".svg", ".csv"))
        path, damage = chance.choice(paths), chance.choice(DAMAGES)
        wanted = self.pages[folder.path]

        def accepted(page: str) -> bool:
            return page == wanted or "figures" in path.parts or (path.suffix == ".jsonl" and damage in (cut, emptied))

        return _damaged(path, damage, chance, lambda: wrong_answer(lambda: build_page([folder]), accepted))

    def _texts(self) -> list[Saved]:
        """What is JSON, of runs of every kind."""
        found = []
        for folder in map(RunFolder, (self.train, self.tabular, self.reproduction)):
            found += [
                Saved(folder.path / "config.json", lambda folder=folder: RunFolder.open(folder.path).config),
                Saved(folder.path / "metrics.jsonl", folder.records, may_be_shorter=True),
                Saved(folder.path / "summary.json", lambda folder=folder: folder.summary),
            ]
        episodes, records, *rest, _ = self._load()
        before = (episodes - 1, [each for each in records if each["episode"] < episodes - 1], *rest, 1)
        texts = self.train / "metrics.jsonl", self.train / "config.json"
        return [*found, *(Saved(path, self._load, before=before) for path in texts)]

    def _load(self) -> Any:
        """What a whole run gives, as an agent, and of how much the user is told."""
        with stubbed(), warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            agent = cdpo.load(self.train)
        return agent.episodes, agent.records, agent._trainer.settings, agent.seeds, len(told)

    def _arrays(self, home: Path) -> list[Saved]:
        """What is binary, of a run of now."""
        with stubbed():
            cdpo.load(self.train).save(home / "policies", policy_only=True)
        return [*_checkpoints(self.train), *_checkpoints(home / "policies")]


def _checkpoints(folder: Path) -> list[Saved]:
    """The arrays and the logs of a run."""
    found = []
    for path in sorted(folder.glob("checkpoints/*.npz")):
        found.append(Saved(path, lambda path=path: _plain(*load_arrays(path, upgraded))))
    for path in sorted(folder.glob("checkpoints/*.bin")):
        width = int.from_bytes(path.read_bytes()[12:16], "little")
        rows = (path.stat().st_size - 20) // (4 * width + 4)
        found.append(Saved(path, lambda path=path, rows=rows, width=width: Log.read(path, rows, width).tobytes()))
    return found


def _golden(home: Path) -> list[Saved]:
    """The same of runs of earlier versions, whose texts have no checksums."""
    found = []
    for archive in sorted(GOLDEN.glob("*/*.zip")):
        with zipfile.ZipFile(archive) as opened:
            opened.extractall(home / archive.stem)
        found += _checkpoints(home / archive.stem / "run")
    return found


def _mdp(path: Path) -> Saved:
    chance = np.random.default_rng(0)
    np.savez(path, transition=chance.dirichlet(np.ones(3), (3, 2)), reward_mean=chance.normal(size=(3, 2, 3)))
    return Saved(path, lambda: {name: np.asarray(each).tobytes() for name, each in vars(load_mdp(path)).items()})


def _plain(arrays: dict[str, np.ndarray], meta: Any) -> Any:
    return {name: (each.dtype.str, each.shape, each.tobytes()) for name, each in arrays.items()}, meta


def _damaged(
    path: Path, damage: Callable[[bytes, random.Random], bytes], chance: random.Random, judge: Callable[[], str | None]
) -> str | None:
    """What a judge says while a file is damaged."""
    data = bad = path.read_bytes()
    while bad == data:
        bad = damage(data, chance)
    path.write_bytes(bad)
    try:
        failure = judge()
    finally:
        path.write_bytes(data)
    return f"{'/'.join(path.parts[-3:])}, {damage.__name__}: {failure}" if failure else None
