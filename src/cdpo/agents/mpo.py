"""Maximum a posteriori policy optimisation (Abdolmaleki et al. 2018) on real transitions."""

from dataclasses import dataclass
from typing import ClassVar

from cdpo.agents.replaying import OffPolicy


@dataclass(frozen=True)
class MPO(OffPolicy):
    """Learns from the replay, without a model."""

    name: ClassVar[str] = "mpo"
    uses: ClassVar[tuple[str, ...]] = ("loop", "mpo")
