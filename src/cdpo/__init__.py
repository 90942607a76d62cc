"""Conservative Dual Policy Optimization: sample-efficient control with learned models, in JAX."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("cdpo")
except PackageNotFoundError:  # run from the sources, without an install
    __version__ = "0+unknown"

__all__ = ["__version__"]
