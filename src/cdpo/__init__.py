"""Conservative Dual Policy Optimization: sample-efficient control, and the agents it is compared with."""

import importlib
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

try:
    __version__ = version("cdpo")
except PackageNotFoundError:  # run from the sources, without an install
    __version__ = "0+unknown"

__all__ = ["__version__", "tabular"]


def __getattr__(name: str) -> ModuleType:
    """Parts are imported when first used: `import cdpo` alone does not wait for JAX."""
    if name == "tabular":
        return importlib.import_module("cdpo.tabular")
    raise AttributeError(f"module 'cdpo' has no attribute {name!r}")
