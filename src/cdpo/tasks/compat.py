"""Keeps MuJoCo a quiet guest: no log file in the user's folder, and pictures without a display."""

import contextlib
import os
import sys
import threading
import warnings
from collections.abc import Iterator

from cdpo.errors import UserError

# MuJoCo has one warning handler for the whole process, and Python one list of filters; one may be set within another.
_LOCK = threading.RLock()


@contextlib.contextmanager
def without_deprecations() -> Iterator[None]:
    """Drops MuJoCo's notices of deprecation while a model is loaded; other warnings become Python's.

    MuJoCo prints such a notice and writes it to MUJOCO_LOG.TXT in the working folder. Gymnasium's half-cheetah
    brings one on (`settotalmass`). Loading the same file with the attribute taken out and the masses scaled later
    would change the model: the statistics by which the constraint solver judges convergence would stay unscaled.
    """
    import mujoco  # type: ignore[import-untyped]

    with _LOCK, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is deprecated")  # MjSpec gives the notice as Python's warning
        before = mujoco.get_mju_user_warning()
        others: list[str] = []
        mujoco.set_mju_user_warning(lambda message: None if "deprecated" in message else others.append(message))
        try:
            yield
        finally:
            mujoco.set_mju_user_warning(before)
    for message in others:
        warnings.warn(f"MuJoCo: {message}", stacklevel=3)


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """Drops Python's warnings while an environment is made, of a newer version of it for instance.

    A user who turns warnings into errors wants to hear of their own code, not of an id they chose on purpose.
    """
    with _LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def choose_gl() -> None:
    """Has MuJoCo draw through EGL where there is no display; what the user chose by MUJOCO_GL stays."""
    display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if sys.platform == "linux" and not display and not os.environ.get("MUJOCO_GL"):
        os.environ["MUJOCO_GL"] = "egl"


def check_gl() -> None:
    """Raises an error that says what is missing where no picture can be drawn off screen.

    Gymnasium's renderer, left to fail by itself, prints a second traceback while it is taken down.
    """
    backend = os.environ.get("MUJOCO_GL")
    if backend not in ("egl", "osmesa"):
        return
    try:
        if backend == "egl":
            from mujoco.egl import GLContext  # type: ignore[import-untyped]
        else:
            from mujoco.osmesa import GLContext  # type: ignore[import-untyped]
        context = GLContext(8, 8)
        context.free()
    except Exception as error:  # each of the libraries involved raises a class of its own
        raise UserError(
            f"cannot draw MuJoCo with MUJOCO_GL={backend} ({error}); "
            "install the Python package PyOpenGL and the system's libEGL, or set MUJOCO_GL to glfw, egl or osmesa"
        ) from error
