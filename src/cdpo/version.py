"""The version of the library, which files and the command line tell."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("cdpo")
except PackageNotFoundError:  # run from the sources, without an install
    __version__ = "0+unknown"
