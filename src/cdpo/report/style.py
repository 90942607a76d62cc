"""The house style of every figure: one look per agent, whatever the figure and whatever the user's matplotlibrc."""

import functools
import io
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from matplotlib import style as mpl_style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font

_FONT = "DejaVu Sans"  # comes with matplotlib, so that figures look the same on every machine
_LONGEST = 48  # characters of a name in a figure: longer ones would leave no room for the axes

_RC = {
    "font.family": "sans-serif",
    "font.sans-serif": [_FONT],
    "font.size": 9,
    "text.color": "#333333",
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.labelcolor": "#333333",
    "axes.edgecolor": "#999999",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e8e8e8",
    "grid.linewidth": 0.7,
    "xtick.color": "#999999",
    "ytick.color": "#999999",
    "xtick.labelcolor": "#333333",
    "ytick.labelcolor": "#333333",
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "svg.fonttype": "none",  # text stays text: it can be searched, selected and read aloud
    "svg.hashsalt": "cdpo",  # without it, identifiers are random
}

Dashes = tuple[float, ...]

_SOLID: Dashes = ()
_DASHED: Dashes = (4, 1.6)
_DASH_DOT: Dashes = (5, 1.5, 1.2, 1.5)
_DOTTED: Dashes = (1.2, 1.4)

# Colours of Okabe and Ito and of Tol's muted scheme, which stay apart for colour-blind readers; the dashes tell the
# neighbours apart in print. Agents that never share a figure may share a colour.
_AGENTS: dict[str, tuple[str, str, Dashes]] = {
    "cdpo": ("CDPO", "#d55e00", _SOLID),
    "psrl": ("PSRL", "#0072b2", _SOLID),
    "ucrl": ("UCRL", "#009e73", _SOLID),
    "greedy": ("greedy", "#cc79a7", _SOLID),
    "ube": ("UBE", "#56b4e9", _DASHED),
    "mm": ("MM", "#e69f00", _DASHED),
    "bql": ("BQL", "#332288", _DASH_DOT),
    "q-learning": ("Q-learning", "#999933", _DASH_DOT),
    "oracle": ("oracle", "#222222", _DOTTED),
    "random": ("random", "#8a8a8a", _DOTTED),
    "hucrl": ("HUCRL", "#009e73", _DASHED),
    "mbpo": ("MBPO", "#56b4e9", _SOLID),
    "slbo": ("SLBO", "#e69f00", _DASH_DOT),
    "me-trpo": ("ME-TRPO", "#332288", _DASHED),
    "dpi": ("DPI", "#117733", _DOTTED),
    "sac": ("SAC", "#999933", _SOLID),
    "ppo": ("PPO", "#882255", _DASHED),
    "mpo": ("MPO", "#44aa99", _DASH_DOT),
}
_FURTHER = ("#aa4499", "#117733", "#88ccee", "#661100", "#6699cc", "#ddaa33", "#004488", "#bb5566")
# How the same agent looks in a second, third, ... run: its colour mixed with another, and these dashes.
_VARIANTS: tuple[tuple[str, float, Dashes | None], ...] = (
    ("#000000", 0.0, None),
    ("#000000", 0.35, _DASHED),
    ("#ffffff", 0.35, _DASH_DOT),
    ("#000000", 0.6, _DOTTED),
)

_drawing = threading.RLock()


@dataclass(frozen=True)
class Look:
    """How one line is drawn; `dashes` are lengths in line widths, on and off in turn, none for a solid line."""

    colour: str
    dashes: Dashes
    width: float
    band: float  # opacity of the band
    order: int  # higher is nearer to the reader


@contextmanager
def house() -> Iterator[None]:
    """Makes and draws figures in the house style.

    matplotlib keeps its style in one global table. The lock keeps our own threads out of each other's way, and the
    table is as it was afterwards.
    """
    with _drawing, mpl_style.context(["default", _RC]):
        yield


def agent_label(agent: str) -> str:
    """What an agent is called in figures and tables.

    >>> agent_label("cdpo"), agent_label("mine")
    ('CDPO', 'mine')
    """
    return _AGENTS[agent][0] if agent in _AGENTS else agent


def looks(agents: Mapping[str, str]) -> dict[str, Look]:
    """A look for each line of a figure, given its agent. Further lines of one agent are variants of the first."""
    strangers = sorted({agent for agent in agents.values() if agent not in _AGENTS})
    seen: dict[str, int] = {}
    found = {}
    for line, agent in agents.items():
        variant = seen.get(agent, 0)
        seen[agent] = variant + 1
        found[line] = _look(agent, strangers, variant)
    return found


def faint(look: Look) -> Look:
    """The look of a single seed behind the mean: thin, pale and below everything."""
    return replace(look, dashes=_SOLID, colour=_mix(look.colour, "#ffffff", 0.5), width=0.9, band=0.0, order=2)


def plain(text: str) -> str:
    """`text` as a figure can show it: one line, not too long, without formulas or signs that the font has not."""
    shown = "".join(sign if ord(sign) in _signs() and sign.isprintable() else "\ufffd" for sign in text)
    if len(shown) > _LONGEST:
        shown = shown[: _LONGEST - 1] + "…"
    return shown.replace("$", r"\$")


def png(figure: Figure) -> bytes:
    """The figure as a picture with 150 dots per inch."""
    buffer = io.BytesIO()
    with house():
        FigureCanvasAgg(figure).print_figure(buffer, format="png", dpi=150, metadata={"Software": None})
    return buffer.getvalue()


def svg(figure: Figure) -> bytes:
    """The figure as a drawing: the same figure, the same bytes."""
    buffer = io.BytesIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with house():
        FigureCanvasSVG(figure).print_figure(buffer, format="svg", metadata=nothing)
    return buffer.getvalue()


def _look(agent: str, strangers: list[str], variant: int) -> Look:
    if agent in _AGENTS:
        _, colour, dashes = _AGENTS[agent]
    else:
        turn, place = divmod(strangers.index(agent), len(_FURTHER))
        colour, dashes = _FURTHER[place], (_DASHED, _DOTTED, _DASH_DOT, _SOLID)[turn % 4]
    other, share, variant_dashes = _VARIANTS[variant % len(_VARIANTS)]
    ours = agent == "cdpo"
    return Look(
        colour=_mix(colour, other, share),
        dashes=dashes if variant_dashes is None else variant_dashes,
        width=2.6 if ours else 1.5,
        band=0.2 if ours else 0.13,
        order=20 - variant if ours else 10,
    )


def _mix(colour: str, other: str, share: float) -> str:
    pairs = [(int(colour[i : i + 2], 16), int(other[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round((1 - share) * a + share * b):02x}" for a, b in pairs)


@functools.cache
def _signs() -> frozenset[int]:
    """The code points that the font can draw."""
    with house():
        return frozenset(get_font(findfont(_FONT)).get_charmap())
