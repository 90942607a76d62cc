"""Real training, killed at moments that nobody chose, also while it mends what the kill before has left."""

import json
import random
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

from attacks.base import Child, Ended, run
from attacks.world import EPISODES, MORE, SEEDS, World, cdpo_main, told

WORDS = ["train", "pendulum-swingup", "--agent", "sac", "--horizon", "20", "--seeds", str(SEEDS), "--episodes",
         str(EPISODES), "--replay.batch", "4", "--replay.ratio", "0.2", "--sac.hidden", "4", "--loop.random", "1",
         "--loop.evaluate", "1", "--loop.evaluation-episodes", "2"]  # fmt: skip
LONG = 300.0  # seconds that training may take where others work too


class Kills:
    """A run is killed once or more often, and so is going on with it for longer, in some trials."""

    whole: ClassVar[int] = 50

    def __init__(self, home: Path) -> None:
        self.world = Real(home)

    def trial(self, seed: int, folder: Path) -> str | None:
        chance, killed = random.Random(seed), False
        patience, more = chance.choice([0.0, 0.0, 0.2, 30.0]), chance.choice([0, MORE])
        while not killed:  # what was quicker than that does not count
            run = folder / f"run-{len(list(folder.iterdir()))}"
            killed = self._killed(chance, run, patience, *WORDS, "--out", str(run))
        for _ in range(chance.choice([0, 1, 2])):
            self._killed(chance, run, patience, "resume", str(run))
        if more:
            if failure := self.world.finished(run):
                return failure
            self._killed(chance, run, patience, "resume", str(run), "--episodes", str(more))
            self._killed(chance, run, patience, "resume", str(run))
        return self.world.finished(run, more)

    def _killed(self, chance: random.Random, run: Path, patience: float, *words: str) -> bool:
        """Whether a command was killed, somewhere between its start and its end."""
        with mock.patch("cdpo.training.run.PATIENCE", patience):
            child = Child(self.world.doing(*words))
        if chance.random() < 0.3:
            child.alive(chance.uniform(0.0, self.world.seconds))
        else:
            lines = _lines(run) + SEEDS * chance.randint(0, EPISODES)
            while child.alive(0.002) and _lines(run) < lines:
                pass
            child.alive(chance.expovariate(1 / self.world.seconds_of_episode))
        if child.alive():
            child.kill()
        return child.wait(LONG).killed


class Real(World):
    """With the trainer that learns."""

    def __init__(self, home: Path) -> None:
        self._cache = home / "compiled"
        run(lambda: self.doing(*WORDS, "--out", str(home / "first"))(), LONG)  # and all is compiled
        began = time.monotonic()
        super().__init__(home)
        self.seconds = (time.monotonic() - began) / 5  # of a process
        self.seconds_of_episode = json.loads((self.folder / "summary.json").read_text())["wall_s"] / (EPISODES + 1)

    def doing(self, *words: str) -> Callable[[], None]:
        """A command, for a process of its own."""

        def keep_programs() -> None:
            import jax

            jax.config.update("jax_compilation_cache_dir", str(self._cache))
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)

        def do() -> None:
            with mock.patch("cdpo.cli.keep_programs", keep_programs):
                cdpo_main(*words)

        return do

    def train(self, folder: Path, **options: Any) -> Ended:
        return run(self.doing(*WORDS, "--out", str(folder)), LONG)

    def resume(self, folder: Path, more: int = 0, **options: Any) -> Ended:
        return run(self.doing("resume", str(folder), *(["--episodes", str(more)] if more else [])), LONG)

    def told(self, folder: Path) -> dict[str, Any]:
        def tell() -> None:
            print(json.dumps({name: sha256(repr(each).encode()).hexdigest() for name, each in told(folder).items()}))

        ended = run(tell, LONG)
        if ended.code:
            raise RuntimeError(f"it cannot be loaded: {ended}")
        found: dict[str, Any] = json.loads(ended.out.splitlines()[-1])
        return found


def _lines(run: Path) -> int:
    try:
        return (run / "metrics.jsonl").read_bytes().count(b"\n")
    except OSError:
        return 0
