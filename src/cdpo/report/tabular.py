"""What a page shows of tabular runs."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cdpo.errors import UserError
from cdpo.report import figures, tables
from cdpo.report.drawing import inline
from cdpo.report.markup import Markup, facts, flat, join, number, percent, tag
from cdpo.report.parts import card, interval, provenance, seed_list, settings_list, table
from cdpo.report.style import agent_label
from cdpo.report.tables import Record, cell_label, cells, line
from cdpo.report.values import is_count, is_number, nested
from cdpo.runs import RunFolder

_PER_SEED = ("regret", "expected_regret", "normalised_regret", "value_regret")
_CURVE = ("steps", "mean", "low", "high")
_LEDGER = ("lost_share", "mean_loss")

NOTES = (
    "Means are over seeds, with 95% intervals (Student's) in brackets; lower is better everywhere. Regret is what the "
    "oracle earned with the same seed less what the agent earned; normalised regret is its share of what the oracle "
    "earned. Expected regret takes the optimal average reward less the mean rewards of the transitions taken; value "
    "regret sums the value that each policy loses from the start. A seed is stuck if the second half of its run still "
    "loses more than half of the optimal average reward. An update lost value if the new policy is worth less, in "
    "truth, than the one before."
)


def records(folder: RunFolder) -> list[Record]:
    """The results of a run, checked: a UserError if they are not those of a tabular run."""
    results = folder.summary.get("results")
    if not isinstance(results, list) or not results:
        raise _damaged(folder, "it has no results")
    for place, record in enumerate(results, start=1):
        fault = _fault(record)
        if fault:
            raise _damaged(folder, f"{fault} in result {place}")
    return results


def section(name: str, folder: RunFolder) -> Markup:
    """Everything about one run."""
    config, summary, found = folder.config, folder.summary, records(folder)
    command = config.get("command")
    return tag(
        "section",
        tag("h2", name),
        facts(_outline(config, found)),
        tag("pre", tag("code", str(command))) if command else "",
        _figures(found),
        tag("h3", "Results"),
        _stopped(found),
        _results(found),
        tag("h3", "Settings"),
        _settings(config, found),
        provenance(config, summary),
    )


def comparison(folders: Mapping[str, RunFolder]) -> Markup:
    """The runs side by side wherever two or more of them share an environment and size; else nothing."""
    labelled = [
        {**record, "label": f"{line(record)} ({name})", "run": name}
        for name, folder in folders.items()
        for record in records(folder)
    ]
    shared = [
        record
        for group in cells(labelled).values()
        if len({record["run"] for record in group}) >= 2
        for record in group
    ]
    if not shared:
        return Markup("")
    uneven = any(len({each["steps"] for each in group}) > 1 for group in cells(shared).values())
    note = "These runs differ in their steps, so their regrets in the table are not comparable." if uneven else ""
    return tag(
        "section",
        tag("h2", "Comparison"),
        tag("p", "What the runs have in common; the name of the run stands in brackets. ", note, class_="lead"),
        _figures(shared),
        _results(shared),
    )


def write_figures(folder: RunFolder) -> list[Path]:
    """Writes the figures of a run into its folder, each with the data behind it."""
    found = records(folder)
    paths = figures.save_figure(figures.regret_curves(found), folder.figures / "regret", tables.regret_rows(found))
    if tables.sized(found):
        figure, rows = figures.normalised_by_size(found), tables.normalised_rows(found)
        paths += figures.save_figure(figure, folder.figures / "normalised-by-size", rows)
    return paths


def _outline(config: Mapping[str, Any], found: Sequence[Record]) -> dict[str, str]:
    seeds = sorted({seed for record in found for seed in record["seeds"]})
    steps = sorted({record["steps"] for record in found})
    sizes = list(dict.fromkeys(record["size"] for record in found if record["size"] is not None))
    return {
        "kind": str(config["kind"]),
        "environment": ", ".join(dict.fromkeys(record["env"] for record in found)),
        **({"sizes" if len(sizes) > 1 else "size": ", ".join(map(str, sizes))} if sizes else {}),
        "agents": ", ".join(dict.fromkeys(agent_label(record["agent"]) for record in found)),
        "seeds": seed_list(seeds),
        "steps": ", ".join(f"{each:,}" for each in steps),
    }


def _figures(found: Sequence[Record]) -> Markup:
    look = figures.look_of(found)
    curves = zip(cells(found), figures.regret_panels(found), strict=True)
    parts = [
        card(
            look,
            [inline(figure, f"cumulative regret over steps: {cell_label(cell)}") for cell, figure in curves],
            "Cumulative regret: mean over seeds, and its 95% interval as a band.",
        )
    ]
    by_size = tables.sized(found)
    if by_size:
        kept = {line(record) for group in by_size.values() for record in group}
        parts.append(
            card(
                {name: each for name, each in look.items() if name in kept},
                [
                    inline(figure, f"normalised regret over size: {env}")
                    for env, figure in zip(by_size, figures.normalised_panels(found), strict=True)
                ],
                "Normalised regret at the end of the run: mean over seeds with its 95% interval.",
            )
        )
    return join(parts)


def _results(found: Sequence[Record]) -> Markup:
    ledger = any(record.get("ledger") for record in found)
    heads = ["agent", "normalised regret", "expected regret", "value regret", "stuck seeds"]
    heads += ["updates that lost value", "mean loss"] if ledger else []
    bodies = []
    for cell, group in cells(found).items():
        title = tag("th", cell_label(cell), colspan=str(len(heads)), scope="rowgroup")
        rows = (tag("tr", *_result(record, ledger)) for record in group)
        bodies.append(tag("tbody", tag("tr", title, class_="group"), *rows))
    return table("Results", heads, *bodies)


def _stopped(found: Sequence[Record]) -> Markup:
    """Which seeds have no numbers, and why; nothing where all have."""
    told = [
        f"seed {seed} of {cell_label((record['env'], record['size']))}, {line(record)} ({why})"
        for record in found
        for seed, why in record.get("stopped", {}).items()
    ]
    return tag("p", f"Stopped by bad numbers: {'; '.join(told)}.", class_="notice") if told else Markup("")


def _result(record: Record, ledger: bool) -> list[Markup]:
    shares = record.get("ledger") or {}
    regret = tables.estimate(record["normalised_regret"])
    values: list[str] = [
        interval(regret),
        number(tables.estimate(record["expected_regret"]).mean),
        number(tables.estimate(record["value_regret"]).mean),
        percent(record["stuck_fraction"]),
    ]
    values += [percent(shares.get("lost_share")), number(shares.get("mean_loss"))] if ledger else []
    ours = {"class_": "ours"} if record["agent"] == "cdpo" else {}
    counted, seeds = regret.seeds, len(record["normalised_regret"])
    without = tag("span", f", {counted} of {seeds} seeds", class_="soft") if 0 < counted < seeds else ""
    return [tag("th", line(record), without, scope="row", **ours), *(tag("td", value) for value in values)]


def _settings(config: Mapping[str, Any], found: Sequence[Record]) -> Markup:
    """Every agent's settings; where one differs between sizes, each of its values with where it held."""
    by_agent: dict[str, list[Record]] = {}
    for record in found:
        by_agent.setdefault(record["agent"], []).append(record)
    rows = {agent_label(agent): _merged(group) for agent, group in by_agent.items()}
    shared = {key: each for key, each in nested(config, "settings").items() if key not in by_agent}
    if shared:
        rows = {"run": flat(shared), **rows}
    return settings_list(rows)


def _merged(group: Sequence[Record]) -> dict[str, str]:
    flattened = [(cell_label((record["env"], record["size"])), flat(record["settings"])) for record in group]
    merged = {}
    for key in dict.fromkeys(key for _, settings in flattened for key in settings):
        places: dict[str, list[str]] = {}
        for place, settings in flattened:
            places.setdefault(settings.get(key, "none"), []).append(place)
        values = list(places)
        several = [f"{value} ({'; '.join(held)})" for value, held in places.items()]
        merged[key] = values[0] if len(values) == 1 else ", ".join(several)
    return merged


def _fault(record: Any) -> str:
    """What is wrong with a record, or nothing."""
    if not isinstance(record, dict):
        return "no record"
    for key, usable in _USABLE.items():
        if key not in record or not usable(record[key]):
            return f"no usable {key!r}"
    if len({len(record["curve"][key]) for key in _CURVE}) > 1:
        return "a curve of uneven length"
    if not isinstance(record.get("stopped", {}), dict):
        return "no usable 'stopped'"
    ledger = record.get("ledger") or {}
    if not isinstance(ledger, dict) or not all(_is_value(ledger.get(key)) for key in _LEDGER):
        return "no usable 'ledger'"
    return ""


def _is_value(value: Any) -> bool:
    """Null stands for what is not a number."""
    return value is None or is_number(value)


def _are_values(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_value, value))


_USABLE: Mapping[str, Callable[[Any], bool]] = {
    "env": lambda value: isinstance(value, str),
    "size": lambda value: value is None or is_count(value),
    "agent": lambda value: isinstance(value, str),
    "settings": lambda value: isinstance(value, dict),
    "steps": is_count,
    "seeds": lambda value: isinstance(value, list) and all(map(is_count, value)),
    "stuck_fraction": _is_value,
    **dict.fromkeys(_PER_SEED, _are_values),
    "curve": lambda value: isinstance(value, dict) and all(_are_values(value.get(key)) for key in _CURVE),
}


def _damaged(folder: RunFolder, why: str) -> UserError:
    path = str(folder.path / "summary.json")
    return UserError(f"{path!r} is not the summary of a tabular run: {why}; run it again elsewhere")
