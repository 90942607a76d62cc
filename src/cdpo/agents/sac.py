"""Soft actor-critic (Haarnoja et al. 2018) on real transitions."""

from dataclasses import dataclass
from typing import ClassVar

from cdpo.agents.replaying import OffPolicy


@dataclass(frozen=True)
class SAC(OffPolicy):
    """Learns from the replay, without a model."""

    name: ClassVar[str] = "sac"
    uses: ClassVar[tuple[str, ...]] = ("loop", "sac")
