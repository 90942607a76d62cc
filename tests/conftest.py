"""What every test shares: which tests run, how they are compiled, and settings that take no time."""

import ctypes
import gc
import importlib.util
import json
import os
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import hypothesis
import pytest
import slices

hypothesis.settings.register_profile("same examples, however slow the machine", derandomize=True, deadline=None)
hypothesis.settings.load_profile("same examples, however slow the machine")
os.environ.setdefault("MPLBACKEND", "agg")
MEMORY = 1 << 30  # bytes that a process may have between two files before it forgets its programs


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("which tests run (without any of these, those that are not marked slow or extra)")
    group.addoption("--all", action="store_true", help="all tests")
    group.addoption("--slice", action="store_true", help="of the slow and extra tests alone, those of this commit")
    group.addoption("--seconds", type=float, default=slices.BUDGET, help="that a slice may take in one process")
    group.addoption("--record", action="store_true", help="keep what slow tests take in tests/durations.json")


def pytest_configure(config: pytest.Config) -> None:
    """Set before anything imports JAX, in each process that tests, and for those that tests begin."""
    if config.getoption("numprocesses", None):  # the workers inherit what is set here
        return
    flags = []
    if "PYTEST_XDIST_WORKER" in os.environ:  # two workers that each take every core spin against each other
        flags.append("--xla_cpu_multi_thread_eigen=false")
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if _quick(config) and version("jax").startswith("0.10."):  # later ones do not know the flag, and would abort
        flags.append("--xla_cpu_use_fusion_emitters=false")  # a third of what compiling costs; slow tests have them
    os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *flags]).strip()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    slow = [item for item in items if _is_slow(item) or "extra" in item.keywords]
    for item in slow:
        item.user_properties.append(("slow", True))
    if config.getoption("--slice"):
        tests = [item.nodeid for item in slow]
        try:
            kept = slices.chosen(tests, *slices.here(), config.getoption("--seconds"), slices.recorded())
        except ValueError as error:
            raise pytest.UsageError(str(error)) from error
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in kept])
        items[:] = [item for item in items if item.nodeid in kept]
    elif _quick(config):
        for item in slow:
            reason = "slow" if _is_slow(item) else "needs an extra"
            item.add_marker(pytest.mark.skip(reason=f"{reason}; make test-all runs it"))


class Recorder:
    """Seconds of every slow test of all workers, kept if none failed."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if ("slow", True) in report.user_properties:
            self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus == pytest.ExitCode.OK:
            slices.write(slices.record(self.seconds, slices.recorded()))


def pytest_sessionstart(session: pytest.Session) -> None:
    config = session.config
    if config.getoption("--record") and "PYTEST_XDIST_WORKER" not in os.environ:
        if not config.getoption("--all"):
            raise pytest.UsageError("--record is of whole files: give --all, and files if not all of them")
        config.pluginmanager.register(Recorder())


def _quick(config: pytest.Config) -> bool:
    return not config.getoption("--all") and not config.getoption("--slice")


def _is_slow(item: pytest.Item) -> bool:
    """Marked so; `besides` names the one case of a test that is not."""
    marker = item.get_closest_marker("slow")
    if marker is None:
        return False
    case = getattr(item, "callspec", None)
    return case is None or "besides" not in marker.kwargs or case.id != marker.kwargs["besides"]


@pytest.fixture(scope="session", autouse=True)
def compiled_programs(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> None:
    """Workers share what they compile; quick tests have it compiled quickly."""
    import jax

    jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.getbasetemp().parent / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
    jax.config.update("jax_disable_most_optimizations", _quick(request.config))


@pytest.fixture(scope="module", autouse=True)
def forgotten_programs() -> Iterator[None]:
    """A compiled program holds memory, and maps of it, of which a process may have no more than so many."""
    yield
    if int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") < MEMORY:
        return
    import jax

    jax.clear_caches()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what was freed in small pieces stays with the process until it is told


@pytest.fixture(scope="module")
def compiled_soon() -> Iterator[None]:
    """For programs that are small and run once or twice, of slow tests as well: compiling them is what takes time."""
    yield from _optimised(False)


@pytest.fixture
def compiled_well() -> Iterator[None]:
    """For loops that are long, of quick tests as well."""
    yield from _optimised(True)


def _optimised(much: bool) -> Iterator[None]:
    import jax

    before = jax.config.read("jax_disable_most_optimizations")
    if before is not much:  # it is so already
        yield
        return
    jax.clear_caches()  # a program is not compiled again because it was compiled otherwise
    jax.config.update("jax_disable_most_optimizations", not much)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
    jax.clear_caches()


@pytest.fixture(scope="session")
def script() -> Callable[[Path], ModuleType]:
    """Scripts outside the package, by their paths, as modules."""

    def load(path: Path) -> ModuleType:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture(scope="session")
def edited() -> Callable[..., None]:
    """Changes entries of a JSON file of a run as its owner would, on purpose."""

    def edit(path: Path, **entries: Any) -> None:
        told = {**json.loads(path.read_text()), **entries}
        told.pop("crc32", None)
        path.write_text(json.dumps({**told, "crc32": None}))

    return edit


@pytest.fixture(scope="session")
def tiny() -> dict[str, Any]:
    """Settings of a deep agent, small enough to compile in seconds and run in none."""
    return {
        "models": 2,
        "loop": {"evaluation_episodes": 1},
        "ensemble": {"heads": 2, "hidden": (8,), "steps": 4, "check": 2, "batch": 8},
        "dyna": {"rounds": 1, "updates": 2, "particles": 2, "horizon": 2, "batch": 4},
        "sac": {"hidden": (8,)},
    }


@pytest.fixture(scope="session")
def tiny_bptt() -> dict[str, Any]:
    """The same for the solver that has no learner."""
    return {"updates": 2, "particles": 2, "horizon": 2, "hidden": (8,)}


@pytest.fixture(scope="session")
def tiny_learners() -> dict[str, dict[str, Any]]:
    """Settings of Dyna with each learner, by its name, that take no time."""
    small, rollouts = {"hidden": (8,)}, {"rounds": 2, "particles": 2, "horizon": 2}
    recalled = {**rollouts, "updates": 2, "batch": 4}
    return {
        "sac": {"dyna": recalled, "sac": small},
        "mpo": {"dyna": recalled, "mpo": {**small, "samples": 2}},
        "ppo": {"dyna": rollouts, "ppo": {**small, "epochs": 1, "minibatches": 2}},
        "trpo": {"dyna": rollouts, "trpo": {**small, "directions": 2, "trials": 2}},
        "actor-critic": {"dyna": rollouts, "actor_critic": small},
    }


@pytest.fixture(scope="session")
def tiny_mpc() -> dict[str, Any]:
    """And for the one that plans."""
    few = {"plans": 2, "candidates": 4, "rounds": 2, "updates": 2, "batch": 4, "particles": 2}
    return {"horizon": 2, "hidden": (8,), **few}
