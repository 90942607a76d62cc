"""Conservative Dual Policy Optimization: sample-efficient control, and the agents it is compared with."""

import importlib
from typing import TYPE_CHECKING, Any

from cdpo import tasks as tasks  # registers cdpo/... with Gymnasium, and imports no more than that
from cdpo.errors import UserError as UserError
from cdpo.version import __version__ as __version__

if TYPE_CHECKING:
    from cdpo import tabular as tabular
    from cdpo.api import CDPO as CDPO
    from cdpo.api import DPI as DPI
    from cdpo.api import HUCRL as HUCRL
    from cdpo.api import MBPO as MBPO
    from cdpo.api import METRPO as METRPO
    from cdpo.api import MPO as MPO
    from cdpo.api import PPO as PPO
    from cdpo.api import PSRL as PSRL
    from cdpo.api import SAC as SAC
    from cdpo.api import SLBO as SLBO
    from cdpo.api import Greedy as Greedy
    from cdpo.api import load as load

__all__ = [
    "CDPO",
    "DPI",
    "HUCRL",
    "MBPO",
    "METRPO",
    "MPO",
    "PPO",
    "PSRL",
    "SAC",
    "SLBO",
    "Greedy",
    "UserError",
    "__version__",
    "load",
    "tabular",
    "tasks",
]


def __getattr__(name: str) -> Any:
    """Parts are imported when first used: `import cdpo` alone does not wait for JAX."""
    if name == "tabular":
        return importlib.import_module("cdpo.tabular")
    if name in __all__:
        return getattr(importlib.import_module("cdpo.api"), name)
    raise AttributeError(f"module 'cdpo' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, imported already or not."""
    return __all__
