"""Proximal policy optimisation (Schulman et al. 2017) on real transitions."""

from dataclasses import dataclass
from typing import ClassVar

from cdpo.agents.newest import OnPolicy


@dataclass(frozen=True)
class PPO(OnPolicy):
    """Learns from the newest episodes, without a model."""

    name: ClassVar[str] = "ppo"
    uses: ClassVar[tuple[str, ...]] = ("loop", "ppo")
