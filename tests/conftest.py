"""What every test shares: which tests run, how many threads they take, and settings that take no time."""

import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

# Two workers that each take every core spin against each other. Set before anything imports jax.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "agg")


@pytest.fixture(scope="session", autouse=True)
def compiled_programs(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Workers share what they compile."""
    import jax

    jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.getbasetemp().parent / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)


@pytest.fixture(scope="module", autouse=True)
def forgotten_programs() -> Iterator[None]:
    """A compiled program holds memory maps, and a process may have no more than so many of them."""
    yield
    import jax

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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the tests marked slow or extra as well")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--all"):
        return
    reasons = {"slow": "slow; make test-all runs it", "extra": "needs an extra; make test-all runs it"}
    for item in items:
        for marker, reason in reasons.items():
            if marker in item.keywords:
                item.add_marker(pytest.mark.skip(reason=reason))
