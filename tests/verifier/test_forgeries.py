"""Whatever `verify` refuses, the verifier in one file refuses: forged claims, blocks, protocols and manifests."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import fragility_check as checker
import pytest
from audited_cases import SMALL, Audited, make_audit
from forging_folders import Rows, forge

import fragility as fg
from fragility.audits import Certificates
from fragility.protocol import Protocol


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Audited:
    return make_audit(SMALL, tmp_path_factory.mktemp("forged") / "audit")


def test_a_forger_who_changes_nothing_is_believed(case: Audited, tmp_path: Path) -> None:
    folder = forge(case.folder, tmp_path / "a")
    assert case.check(folder).exit_code == 0 and not case.refuses(folder), str(case.check(folder))
    assert fg.verify(folder, case.model, case.X)


# --- claims and blocks ---------------------------------------------------------------------------------------


def set_at(name: str, change: Callable[[Any], Any], needs: Callable[[Any], bool] = lambda value: True):
    """Change one column of the first row whose value can be changed."""

    def forged(rows: Rows) -> None:
        row = next(row for row in rows if needs(row[name]))
        row[name] = change(row[name])

    return forged


def in_list(change: Callable[[Any], Any], needs: Callable[[Any], bool] = lambda value: True):
    """Change the first item of a list that can be changed."""

    def forged(items: list[Any]) -> list[Any]:
        at = next(i for i, item in enumerate(items) if needs(item))
        return [*items[:at], change(items[at]), *items[at + 1 :]]

    return forged


def any_item(needs: Callable[[Any], bool]) -> Callable[[list[Any]], bool]:
    return lambda items: any(map(needs, items))


def lie_steadily(rows: Rows) -> None:
    """A row that flips claims that it never does, in every claim of the row at once."""
    row = next(row for row in rows if row["flipped"])
    K, m = len(row["path"]), row["margin"]
    row |= {"flip_budget": K + 1, "flipped": False, "path_margin": [m] * (K + 1), "lambda_attenuate_all": None}
    row |= {"path_predicted": [row["predicted"]] * (K + 1), "fade_margin": [m] * 10, "lambda_attenuate_top1": None}
    row |= {"bare_margin": m}
    row |= checker.derive(WEIGHTS, row)


def lie_of_a_drop(rows: Rows) -> None:
    """A smaller drop, with every score that follows from it; the path keeps its order."""
    row = next(row for row in rows if row["one_step_drop"][0] > 0.05)
    row["one_step_drop"] = [row["one_step_drop"][0] - 0.001, *row["one_step_drop"][1:]]
    row |= checker.derive(WEIGHTS, row)


WEIGHTS: dict[str, Any] = {
    "exposure_weights": [1 / 3, 1 / 3, 1 / 3, 1.0],
    "weights": [1 / 3] * 3,
    "severities": [i / 10 for i in range(1, 11)],
    "reading": "support",
    "operators": ["attenuate_all", "attenuate_top1"],
}

CLAIMS = {
    "confidence": set_at("confidence", lambda v: v - 0.001),
    "margin": set_at("margin", lambda v: v + 0.001),
    "flip budget": set_at("flip_budget", lambda v: v + 1, lambda v: v < 5),
    "rcma": set_at("rcma", lambda v: v / 2, lambda v: v > 0),
    "exposure": set_at("exposure", lambda v: v / 2, lambda v: v > 0),
    "threshold": set_at("lambda_attenuate_all", lambda v: min(1.0, v + 0.1), lambda v: v is not None and v < 0.9),
    "path": set_at("path", lambda v: [v[1], v[0], *v[2:]]),
    "path to a group that is not on it": set_at("path", lambda v: [*v[:-2], v[-1], v[-2]]),
    "path margin": set_at("path_margin", lambda v: [*v[:-1], v[-1] + 0.01]),
    "class on the path": set_at("path_predicted", lambda v: [*v[:-1], v[0]], lambda v: v[-1] != v[0]),
    "drop": set_at("one_step_drop", lambda v: [v[0] + 0.01, *v[1:]]),
    "drop with what follows": lie_of_a_drop,
    "drop of confidence": set_at("one_step_confidence_drop", lambda v: [v[0] + 0.01, *v[1:]]),
    "fading": set_at("fade_margin", lambda v: [v[0] + 0.01, *v[1:]], lambda v: len(v) > 0),
    "margin without evidence": set_at("bare_margin", lambda v: v + 0.01),
    "random loss": set_at("random_loss", lambda v: v / 2, lambda v: v > 0),
    "missing field": set_at("already_missing", lambda v: ["age"]),
    "no flip at all": lie_steadily,
    "row left out": lambda rows: rows[1:],
    "rows exchanged": set_at("id", lambda v: 10**6),
}


@pytest.mark.parametrize("what", CLAIMS)
def test_forged_claims_are_refused(case: Audited, tmp_path: Path, what: str) -> None:
    folder = forge(case.folder, tmp_path / "a", claims=CLAIMS[what])
    assert not fg.verify(folder, case.model, case.X) or what in ("rows exchanged",)
    assert case.refuses(folder) or what == "rows exchanged", what


def shift_flip(text: str) -> str:
    value, label = json.loads(text)
    return json.dumps([value + 1 if isinstance(value, int | float) else value, label], separators=(",", ":"))


def widen(rows: Rows) -> None:
    """An interval that ends below its range says that it reaches the end of the range."""
    row = next(row for row in rows if any(row["interval_above"]))
    at = next(i for i, flip in enumerate(row["interval_above"]) if flip)
    row["interval_above"][at] = None


def keep_category(rows: Rows) -> None:
    row = next(row for row in rows if any(c not in (None, "[]") for c in row["interval_categories"]))
    at = next(i for i, c in enumerate(row["interval_categories"]) if c not in (None, "[]"))
    row["interval_categories"][at] = "[]"


def halve(value: float) -> float:
    return value / 2


def above_0(value: float) -> bool:
    return value > 0


BLOCKS = {
    "a larger set": ("lattice", lambda rows: enlarge(rows)),
    "proved to hold": ("lattice", lambda rows: hold(rows)),
    "another count": ("lattice", set_at("smallest_count", lambda v: v + 1, lambda v: v is not None and v > 0)),
    "not decided": ("lattice", lambda rows: doubt(rows)),
    "mode drop": ("modes", set_at("mode_drop_wrong", lambda v: [v[0] + 0.01, *v[1:]])),
    "mode drop with its exposure": ("modes", lambda rows: lie_of_a_mode(rows)),
    "mode exposure": ("modes", set_at("exposure_wrong", lambda v: v / 2, lambda v: v > 0.01)),
    "flip chance": ("modes", set_at("flip_chance_wrong", in_list(halve, above_0), any_item(above_0))),
    "lost, flips": ("modes", set_at("flip_chance_lost", in_list(lambda v: 1 - v))),
    "interval end": ("intervals", widen),
    "category": ("intervals", keep_category),
    "interval state": ("intervals", set_at("interval_state", in_list(lambda v: "bracketed", lambda v: v == "exact"))),
    "other baseline, budget": ("baselines", set_at("flip_budget_median", lambda v: v - 1, lambda v: v > 1)),
    "other baseline, exposure": ("baselines", set_at("exposure_missing", lambda v: v / 2, lambda v: v > 0.01)),
    "declared baseline": ("baselines", set_at("exposure_typical", lambda v: v + 1e-6)),
    "a row less": ("baselines", lambda rows: rows[1:]),
    "a row less of every row": ("modes", lambda rows: rows[1:]),
}


def lie_of_a_mode(rows: Rows) -> None:
    """A larger drop of a mode, and the exposure that follows from it."""
    row = next(row for row in rows if row["exposure_wrong"] > 0.01 and row["mode_drop_wrong"][0] > 0.01)
    drops = row["mode_drop_wrong"]
    before, added = -math.log1p(-row["exposure_wrong"]), 0.01
    scale = sum(drop for drop in drops if drop > 0) / before  # the margin
    row["mode_drop_wrong"] = [drops[0] + added, *drops[1:]]
    row["exposure_wrong"] = -math.expm1(-(before + added / scale))


def enlarge(rows: Rows) -> None:
    row = next(row for row in rows if row["smallest_size"] == 1)
    other = next(name for name in ORDER if name not in row["smallest_set"])
    larger = sorted([*row["smallest_set"], other], key=ORDER.index)
    row |= {"smallest_size": 2, "smallest_set": larger, "smallest_count": 5}


ORDER = [
    "annual income",
    "age",
    "years employed",
    "savings",
    "loan amount",
    "earlier loans",
    "owns a car",
    "region",
    "work",
    "purpose",
]


def hold(rows: Rows) -> None:
    row = next(row for row in rows if row["smallest_size"])
    row |= {"smallest_state": "none at all, proved", "smallest_size": None, "smallest_set": [], "smallest_count": 0}


def doubt(rows: Rows) -> None:
    row = next(row for row in rows if row["smallest_size"])
    row |= {"smallest_state": "not decided", "smallest_size": None, "smallest_set": [], "smallest_count": None}


@pytest.mark.parametrize("what", BLOCKS)
def test_forged_blocks_are_refused(case: Audited, tmp_path: Path, what: str) -> None:
    block, change = BLOCKS[what]
    folder = forge(case.folder, tmp_path / "a", blocks={block: change})
    assert not fg.verify(folder, case.model, case.X)
    assert case.refuses(folder), what


def test_changed_bytes_are_refused(case: Audited, tmp_path: Path, rng: Any = None) -> None:
    folder = forge(case.folder, tmp_path / "a")
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        path.write_bytes(data[:50] + bytes([data[50] ^ 1]) + data[51:])
        assert case.refuses(folder), path.name
        path.write_bytes(data)


# --- the forgeries that `verify` is tested with --------------------------------------------------------------------


def read_tests(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[1] / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


adversary = read_tests("test_adversary")
# Statements about the model that only the library's fingerprint and description can tell; the verifier lists them under
# what it did not prove.
STATEMENTS = {"kind", "partial", "fingerprint", "version of a thing"}


@pytest.fixture(scope="module")
def credit() -> Any:
    from pipelines import fitted

    return fitted("credit_g", "lightgbm", "transformed")


@pytest.fixture(scope="module")
def certs(credit: Any) -> Certificates:
    protocol = Protocol.fit(credit.model, credit.X_train, depth=4, severities=(0.25, 0.5, 1.0))
    return fg.audit(credit.model, credit.X_test[: adversary.N], protocol, engine="blackbox")


def check_forged(folder: Path, credit: Any) -> checker.Result:
    return checker.check(folder, credit.X_test[: adversary.N], **checker.take_apart(credit.model), sample=1, seed=1)


@pytest.mark.parametrize("what", adversary.TYPES)
def test_swapped_types_are_refused(certs: Any, credit: Any, tmp_path: Path, what: str) -> None:
    change, _ = adversary.TYPES[what]
    folder = adversary.forge(certs, tmp_path / "a", table=adversary.redigested(certs, change(certs.table)))
    assert check_forged(folder, credit).exit_code == 1, what


@pytest.mark.parametrize("what", adversary.WORDS)
def test_changed_words_are_refused(certs: Any, credit: Any, tmp_path: Path, what: str) -> None:
    folder = adversary.forge(certs, tmp_path / "a", **adversary.WORDS[what](certs.manifest.to_dict()))
    result = check_forged(folder, credit)
    assert result.exit_code == 1 or what in STATEMENTS, what


@pytest.mark.parametrize("what", adversary.PROTOCOLS)
def test_protocols_that_contradict_themselves_are_refused(certs: Any, credit: Any, tmp_path: Path, what: str) -> None:
    document = adversary.PROTOCOLS[what](certs)
    text = (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()
    words = {**certs.manifest.to_dict()}
    with contextlib.suppress(AttributeError, OverflowError, TypeError):
        words["protocol_digest"] = checker.sha256(checker.canonical(document))
    folder = adversary.forge_folder(tmp_path / "a", certs.table, text, words)
    result = check_forged(folder, credit)
    assert result.exit_code == 1 and "the audit can be read" in " ".join(result.lists["false"]), what


# --- protocols that say of baselines and origins what is not so ------------------------------------------------------


baselines = read_tests("test_protocol_forgeries")
# name -> the true protocol's baseline, and what is made of it
PRETENCES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "typical, but no category": ("typical", lambda p: baselines.with_cells(p, c_housing_own=0.7, c_housing_rent=0.2)),
    "typical, but a rare category": (
        "typical",
        lambda p: baselines.with_cells(p, c_housing_own=0.0, c_housing_rent=1.0),
    ),
    "typical, but a fraction": ("typical", lambda p: baselines.with_cells(p, w_duration=20.5)),
    "means that nobody calls artificial": ("mean", lambda p: replace(p, artificial=())),
}


@pytest.mark.parametrize("what", [*PRETENCES, "nothing"])
def test_baselines_that_are_not_what_they_are_called_are_refused(tmp_path: Path, what: str) -> None:
    model, X = baselines.case()
    baseline, change = PRETENCES.get(what, ("typical", lambda p: p))
    folder = fg.audit(model, X[:12], change(baselines.declared(baseline)), lattice=False).save(tmp_path / "a")
    result = checker.check(folder, X[:12], **checker.take_apart(model))
    assert result.exit_code == (what != "nothing"), str(result)


def test_fields_that_exchange_their_columns_are_refused(tmp_path: Path) -> None:
    """Every sentence about the audit would blame the other field."""
    model, X = baselines.case()
    folder = fg.audit(model, X[:12], baselines.declared("typical"), lattice=False).save(tmp_path / "honest")
    other = {"age": "duration", "duration": "age"}

    def exchange(p: dict[str, Any]) -> None:
        for column in p["inputs"]:
            column["fields"] = [other.get(name, name) for name in column["fields"]]
        columns = {group["name"]: group["columns"] for group in p["groups"]}
        for group in p["groups"]:
            group["columns"] = columns[other.get(group["name"], group["name"])]

    def rename(rows: Rows) -> None:
        names = [group["name"] for group in json.loads(next(folder.glob("protocol-*")).read_text())["groups"]]
        a, b = names.index("age"), names.index("duration")
        for row in rows:
            row["path"] = [other.get(name, name) for name in row["path"]]
            for name in ("one_step_drop", "one_step_confidence_drop"):
                row[name][a], row[name][b] = row[name][b], row[name][a]

    forged = forge(folder, tmp_path / "a", protocol=exchange, claims=rename)
    result = checker.check(forged, X[:12], **checker.take_apart(model))
    assert any(line.startswith("columns are made from the fields") for line in result.lists["false"]), str(result)
