"""The page of the hardening study: hand-written prose with every number filled in from the tidy results."""

from __future__ import annotations

from importlib.resources import files
from string import Template

from fragility_paper.plan import HARDENING_RATE
from fragility_paper.results import StudyResults
from fragility_paper.table import mean, number, signed_interval
from fragility_paper.tables.hardening import (
    AUROC,
    BOOSTED,
    BRITTLE,
    DONORS,
    EARLY,
    FOREST_LIMITS,
    FORESTS,
    HARDENING_TABLES,
    NOISE,
    STRESSES,
    TOLERANCE,
    Pair,
    Where,
    forest_values,
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
        "in_short": _bullets(
            _changes(results, "Boosted trees", BOOSTED),
            _changes(results, "Full-depth forests", FORESTS),
            _changes(results, "All nine families"),
            _composition(results),
        ),
        "stress_text": _stress(results),
        "networks_text": _networks(results),
        "time_text": _time(results),
        "forest_text": _limits(results),
        "mean_text": _mean(results),
    }
    return Template(text).substitute({**known, **tables})


def _bullets(*texts: str) -> str:
    return "\n".join(f"- {text}" for text in texts)


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({100 * part / whole:.0f}%)" if whole else "none"


CHANGES = (
    ("flip early", EARLY),
    ("brittle", BRITTLE),
    ("brittle under values of other rows", DONORS),
    ("brittle under noise", NOISE),
)


def _changes(results: StudyResults, words: str, models: tuple[str, ...] = ()) -> str:
    """What hardening changes for some models, and what it costs."""

    def found(where: Where) -> Pair:
        both = pair(results, where)
        return both.of("model", models) if models else both

    shares = "; ".join(
        f"{name} {number(mean(both.plain))} → {number(mean(both.hardened))} ({signed_interval(both.difference)})"
        for name, both in ((name, found(where)) for name, where in CHANGES)
    )
    accuracy = found({"metric": "accuracy", "rows": "test"})
    held = promise(found(BRITTLE), found(AUROC))
    return (
        f"**{words}**, shares of confident predictions: {shares}. AUROC {signed_interval(found(AUROC).difference)}, "
        f"accuracy {signed_interval(accuracy.difference)}. The brittle share is halved at a cost of at most "
        f"{TOLERANCE} of AUROC in {_share(held['halved'], held['halved'] + held['not'])} units with brittle rows."
    )


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
    parts = [
        f"{'no limit' if limit == 'none' else limit}: {_forest_change(results, 'brittle_share_of_confident', limit)}"
        for limit in FOREST_LIMITS
    ]
    return (
        f"Brittle share of confident rows, plain → hardened: {'; '.join(parts)}. Without a limit trees grow from "
        f"{_forest_change(results, 'leaves', 'none', 0)} leaves."
    )


def _forest_change(results: StudyResults, metric: str, limit: str, digits: int = 3) -> str:
    means = [mean(forest_values(results, metric, limit, rate)) for rate in (0.0, HARDENING_RATE)]
    return " → ".join(number(value, digits) for value in means)


def _mean(results: StudyResults) -> str:
    """What the study first said, and what it was."""
    earlier = results.earlier
    if earlier is None:
        return "These results come without those of the mean."
    boosted = [
        pair(earlier, {**BRITTLE, "variant": variant}).of("model", BOOSTED) for variant in ("default", "baseline mode")
    ]
    worst = [both.of("model", ("lightgbm",)).of("dataset", ("bank_marketing",)) for both in boosted]
    own, typical, worst_own, worst_typical = (
        f"{number(mean(both.plain))} → {number(mean(both.hardened))}" for both in (*boosted, *worst)
    )
    return (
        f"For boosted trees the brittle share of confident rows went {own} by labels of the same mean. Judged by "
        f"labels of values that exist, the same models went {typical}. The difference is largest for LightGBM on Bank, "
        f"{worst_own} against {worst_typical}; where fields are numeric there is hardly any."
    )
