"""The page of the hardening study: hand-written prose with every number filled in from the tidy results."""

from __future__ import annotations

from functools import partial
from importlib.resources import files
from string import Template

from fragility_paper.results import StudyResults
from fragility_paper.table import mean, number, signed_interval
from fragility_paper.tables.hardening import (
    AUROC,
    BOOSTED,
    BRITTLE,
    FOREST_LIMITS,
    FORESTS,
    HARDENING_TABLES,
    STRESSES,
    TOLERANCE,
    Pair,
    pair,
    promise,
    training_seconds,
)

UNSEEN = tuple(name for name in STRESSES if name not in ("default", "mask"))


def hardening_document(results: StudyResults) -> str:
    """The whole page as Markdown."""
    text = files("fragility_paper").joinpath("hardening.md.in").read_text(encoding="utf-8")
    tables = {
        f"table_{name.replace('-', '_')}": build(results).to_markdown() for name, build in HARDENING_TABLES.items()
    }
    known = {
        "units": str(len(results.units)),
        "in_short": _bullets(_boosted(results), _everyone(results), _composition(results), _forests_hurt(results)),
        "stress_text": _stress(results),
        "networks_text": _networks(results),
        "time_text": _time(results),
        "forest_text": _limits(results),
    }
    return Template(text).substitute({**known, **tables})


def _bullets(*texts: str) -> str:
    return "\n".join(f"- {text}" for text in texts)


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({100 * part / whole:.0f}%)" if whole else "none"


def _promised(words: str, brittle: Pair, area: Pair) -> str:
    before, after = mean(brittle.plain), mean(brittle.hardened)
    held = promise(brittle, area)
    halved = after <= before / 2 and mean(area.plain) - mean(area.hardened) <= TOLERANCE
    return (
        f"**{words}**: brittle share of confident rows {number(before)} → {number(after)} "
        f"({signed_interval(brittle.difference)}), AUROC {signed_interval(area.difference)}. Halved at a cost of at "
        f"most {TOLERANCE}: {'yes' if halved else 'no'} on average; not so, among units with something to halve, in "
        f"{_share(held['not'], held['halved'] + held['not'])}."
    )


def _boosted(results: StudyResults) -> str:
    brittle, area = (pair(results, where).of("model", BOOSTED) for where in (BRITTLE, AUROC))
    return _promised("Boosted trees, mean over the data sets", brittle, area)


def _everyone(results: StudyResults) -> str:
    return _promised("All nine families", pair(results, BRITTLE), pair(results, AUROC))


def _composition(results: StudyResults) -> str:
    share = pair(results, {"metric": "confident_share", "rows": "test"})
    everyone, both = (pair(results, {**BRITTLE, "rows": rows}) for rows in ("any", "both"))
    return (
        f"**Apart from confidence**: the confident share goes from {number(mean(share.plain))} to "
        f"{number(mean(share.hardened))}; brittle rows among all rows from {number(mean(everyone.plain))} to "
        f"{number(mean(everyone.hardened))} ({signed_interval(everyone.difference)}), among rows of which both models "
        f"are confident from {number(mean(both.plain))} to {number(mean(both.hardened))} "
        f"({signed_interval(both.difference)})."
    )


def _forests_hurt(results: StudyResults) -> str:
    brittle, area = (pair(results, where).of("model", FORESTS) for where in (BRITTLE, AUROC))
    worse = int((brittle.hardened > brittle.plain).sum())
    rises = f"The share rises in {_share(worse, len(brittle.plain))}."
    return f"{_promised('Full-depth forests', brittle, area)} {rises}"


def _stress(results: StudyResults) -> str:
    there = set(results.pick("hardening", metric="brittle_share")["variant"])
    found = {
        name: pair(results, {**BRITTLE, "variant": name}).of("model", BOOSTED).difference
        for name in UNSEEN
        if name in there
    }
    better = [STRESSES[name] for name, gap in found.items() if gap.high < 0]
    other = [STRESSES[name] for name, gap in found.items() if not gap.high < 0]
    return (
        f"For boosted trees the brittle share of confident rows falls by an interval without 0 under {len(better)} of "
        f"{len(found)} kinds of stress that training did not see"
        + (f"; not so under: {'; '.join(other)}." if other else ", without exception.")
    )


def _networks(results: StudyResults) -> str:
    brittle, area = pair(results, BRITTLE), pair(results, AUROC)
    plain, regularised = (brittle.of("model", (name,)) for name in ("resmlp", "fr_resmlp"))
    own, other = (area.of("model", (name,)) for name in ("resmlp", "fr_resmlp"))
    return (
        f"The brittle share of confident rows is {number(mean(plain.plain))} for the plain ResMLP (AUROC "
        f"{number(mean(own.plain))}), {number(mean(regularised.plain))} for FR-ResMLP ({number(mean(other.plain))}) "
        f"and {number(mean(plain.hardened))} for the hardened ResMLP ({number(mean(own.hardened))})."
    )


def _time(results: StudyResults) -> str:
    found = training_seconds(results)
    ratio = found["train hardened"].sum() / found["train plain"].sum()
    return (
        f"Training took {found['train hardened'].sum() / 3600:.2f} core hours hardened and "
        f"{found['train plain'].sum() / 3600:.2f} plain, a ratio of {ratio:.2f}; with one copy of each row 2 is "
        "expected."
    )


def _limits(results: StudyResults) -> str:
    if results.pick("forest").empty:
        return "These results have no forests of the extra seeds."
    changed = partial(_forest_change, results)
    parts = [
        f"with {limit if limit != 'none' else 'no limit'} {changed('brittle_share_of_confident', limit)}"
        for limit in FOREST_LIMITS
    ]
    return _bullets(
        "**Where all trees agree, the probability is 1** and the margin stands at its clip: one vote lost takes most "
        "of it, and the row counts as brittle although its class never flips. Of confident rows, plain → hardened, "
        f"{changed('certain_share_of_confident')} have such a probability, {changed('flip_share_of_confident')} flip, "
        f"and {changed('brittle_share_of_confident')} are brittle. Two classes, had each of them one vote more: "
        f"{changed('smoothed_brittle_share')}.",
        "**A leaf may remember a single degraded copy**, and then votes as that one row does. Trees grow from "
        f"{_leaves(results, 0.0)} to {_leaves(results, 0.2)} leaves, and the probability that confident rows lose "
        f"under stress, {changed('probability_drop')} on average (two classes), rises with hardening for "
        f"{_share(*_losing_more(results))} forests, by data set as below.",
        f"**What helps** is a limit. Brittle share of confident rows, plain → hardened at 0.2: {'; '.join(parts)}.",
    )


def _leaves(results: StudyResults, rate: float) -> str:
    lines = results.pick("forest", metric="leaves", variant="none", severity=rate, depth=1.0)
    return f"{mean(lines['value']):,.0f}"


def _losing_more(results: StudyResults) -> tuple[int, int]:
    """In how many forests without limits stress takes more probability after hardening than before, and of how many."""
    lines = results.pick("forest", metric="probability_drop", variant="none", depth=1.0)
    values = lines.pivot(index=["dataset", "model"], columns="severity", values="value")
    return int((values[0.2] > values[0.0]).sum()), len(values)


def _forest_change(results: StudyResults, metric: str, limit: str = "none") -> str:
    lines = results.pick("forest", metric=metric, variant=limit, depth=1.0)
    return " → ".join(number(mean(lines[lines["severity"] == rate]["value"])) for rate in (0.0, 0.2))
