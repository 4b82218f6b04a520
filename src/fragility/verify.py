"""verify: do the claims of an audit hold?

Checks, in this order, each reported whether or not an earlier one failed:

1. format        the folder is complete, of a known version, and its table has the declared shape
2. digests       manifest, files, every row and the root digest are what they claim to be
3. protocol      the protocol file is the one the manifest names
4. model         the model given is the one audited
5. input         the rows given are the ones audited
6. recomputation every claim, or those of a sample of rows, recomputed through the black-box engine

Integers and names must be equal; floats may differ by the tolerance the manifest declares.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fragility.arrays import Floats
from fragility.audit import claims_from, declared_tolerance, input_row_digests
from fragility.canonical import DIGEST_PREFIX, combine_digests, digest_bytes
from fragility.certificate import (
    CLAIM,
    MANIFEST_FILE,
    PROTOCOL_FILE,
    TABLE_FILE,
    Certificates,
    Claims,
    context_digest,
    manifest_text,
    row_digests,
)
from fragility.engines.blackbox import trace_blackbox
from fragility.errors import CertificateError, FragilityError, ProtocolError, VerificationError
from fragility.evidence import EvidenceRows
from fragility.models import Model
from fragility.progress import progress_bar
from fragility.protocol import Protocol, bind
from fragility.scores import EPSILON

MAX_LISTED = 20
EXACT = ("predicted", "flip_budget", "flipped", "thresholds", "path", "path_predicted")


@dataclass(frozen=True, slots=True)
class Difference:
    """A claim that does not hold."""

    row: Hashable
    field: str
    claimed: Any
    recomputed: Any

    def __str__(self) -> str:
        return f"row {self.row}, {self.field}: claimed {self.claimed}, recomputed {self.recomputed}"


@dataclass(frozen=True, slots=True)
class Check:
    """One check: whether it passed, in words, and the claims that failed it."""

    name: str
    passed: bool
    detail: str
    tolerance: float | None = None
    differences: tuple[Difference, ...] = ()


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of all checks; true if every one passed."""

    checks: tuple[Check, ...]

    def __bool__(self) -> bool:
        return all(check.passed for check in self.checks)

    def __str__(self) -> str:
        lines = []
        for check in self.checks:
            lines.append(f"{'ok    ' if check.passed else 'FAILED'}  {check.name:<13}  {check.detail}")
            lines += [f"          {difference}" for difference in check.differences[:MAX_LISTED]]
            if len(check.differences) > MAX_LISTED:
                lines.append(f"          and {len(check.differences) - MAX_LISTED} more")
        lines.append("verified" if self else "NOT verified")
        return "\n".join(lines)

    __repr__ = __str__


def verify(
    audit: str | os.PathLike[str] | Certificates,
    model: Any,
    X: Any,
    *,
    ids: Any = None,
    sample: int | None = None,
    progress: bool | None = None,
) -> Verification:
    """Check the certificates of a folder (or in memory) against the model and the rows they speak of.

    sample: recompute only this many rows, chosen by their digests; the other checks always cover everything.
    Raises VerificationError where a check could not be made at all.
    """
    if sample is not None and sample < 1:
        raise VerificationError(f"sample must be at least 1 row, got {sample}")
    loaded, first = _load(audit)
    if loaded is None:
        return Verification((first,))
    wrapped = _wrapped(model)
    checks = [first, _check_digests(audit, loaded), _check_protocol(loaded), _check_model(loaded, wrapped)]
    try:
        rows = bind(wrapped, X, loaded.protocol, ids)
    except ProtocolError as error:
        return Verification((*checks, Check("input", False, str(error))))
    except FragilityError as error:
        raise VerificationError(f"the rows cannot be audited: {error}") from error
    checks.append(_check_input(loaded, rows))
    checks.append(_check_recomputation(loaded, rows, sample, progress))
    return Verification(tuple(checks))


def _wrapped(model: Any) -> Model:
    try:
        return Model.wrap(model)
    except FragilityError as error:
        raise VerificationError(f"the model cannot be used: {error}") from error


def _load(audit: str | os.PathLike[str] | Certificates) -> tuple[Certificates | None, Check]:
    """Return the certificates and the outcome of the format check."""
    if not isinstance(audit, Certificates) and not Path(audit).is_dir():
        raise VerificationError(f"{audit} is not a folder; give the folder an audit was saved to")
    try:
        loaded = audit if isinstance(audit, Certificates) else Certificates.load(audit)
        claims = loaded.claims
        _required_fields(loaded)
        _check_consistency(loaded)
    except (CertificateError, ProtocolError) as error:
        return None, Check("format", False, str(error))
    except (KeyError, TypeError, ValueError, AttributeError, pa.ArrowException, IndexError) as error:
        return None, Check("format", False, f"the folder is malformed: {type(error).__name__}: {error}")
    declared = loaded.manifest["rows"]
    if declared != len(claims):
        return None, Check("format", False, f"the manifest declares {declared} rows, the table has {len(claims)}")
    if len(set(claims.ids)) != len(claims):
        return None, Check("format", False, "the table names a row twice")
    return loaded, Check("format", True, f"{loaded.manifest['format']}, {len(claims)} certificates")


def _required_fields(certificates: Certificates) -> None:
    manifest = certificates.manifest
    for name in ("rows", "root_digest", "protocol_digest", "model", "input", "engine", "tolerance", "claim"):
        if name not in manifest:
            raise CertificateError(f"the manifest lacks the field {name!r}")
    for part, name in [("model", "fingerprint"), ("model", "classes"), ("input", "digest"), ("input", "rows")]:
        if name not in manifest[part]:
            raise CertificateError(f"the manifest lacks the field {part}.{name}")


def _check_consistency(certificates: Certificates) -> None:
    """Refuse a manifest that contradicts the protocol or itself."""
    manifest, protocol = certificates.manifest, certificates.protocol
    expected = [
        ("claim", manifest["claim"], CLAIM),
        ("training_digest", manifest.get("training_digest"), protocol.training_digest),
        ("tolerance", manifest["tolerance"], declared_tolerance(protocol)),
        (
            "engine.paper_evaluations",
            manifest["engine"].get("paper_evaluations"),
            manifest["input"]["rows"] * protocol.states_per_row,
        ),
    ]
    for name, stated, implied in expected:
        if stated != implied:
            raise CertificateError(f"the manifest states {name} {stated!r}, its protocol and format imply {implied!r}")


def _check_digests(audit: Any, certificates: Certificates) -> Check:
    differences: list[Difference] = []
    if not isinstance(audit, Certificates):
        differences += _file_differences(Path(audit), certificates)
    manifest = certificates.manifest
    model = manifest["model"]
    context = context_digest(manifest["protocol_digest"], model["fingerprint"], model["classes"])
    digests = row_digests(certificates.claims, context)
    claimed = certificates.table.column("digest").to_pylist()
    for own_id, stated, digest in zip(certificates.claims.ids, claimed, digests, strict=True):
        if stated != DIGEST_PREFIX + digest.hex():
            differences.append(Difference(own_id, "digest", stated, DIGEST_PREFIX + digest.hex()))
    root = combine_digests(digests)
    if root != manifest["root_digest"]:
        differences.append(Difference("all", "root_digest", manifest["root_digest"], root))
    detail = f"{len(differences)} digests do not match" if differences else "manifest, files, rows and root match"
    return Check("digests", not differences, detail, differences=tuple(differences))


def _file_differences(folder: Path, certificates: Certificates) -> list[Difference]:
    stated = certificates.manifest.get("files", {})
    out = []
    for name in (TABLE_FILE, PROTOCOL_FILE):
        actual = digest_bytes((folder / name).read_bytes())
        if stated.get(name) != actual:
            out.append(Difference("file", name, stated.get(name), actual))
    text = (folder / MANIFEST_FILE).read_text(encoding="utf-8")
    if text != manifest_text(certificates.manifest):
        out.append(
            Difference("file", MANIFEST_FILE, certificates.manifest.get("manifest_digest"), "another digest or layout")
        )
    return out


def _check_protocol(certificates: Certificates) -> Check:
    claimed, actual = certificates.manifest["protocol_digest"], certificates.protocol.digest
    return _equality("protocol", "the protocol", claimed, actual)


def _check_model(certificates: Certificates, model: Model) -> Check:
    claimed = certificates.manifest["model"]["fingerprint"]
    if claimed == model.fingerprint and list(model.classes) != certificates.manifest["model"]["classes"]:
        return Check("model", False, f"the classes are {list(model.classes)}, the manifest names others")
    return _equality("model", f"the model ({model.kind})", claimed, model.fingerprint)


def _equality(name: str, noun: str, claimed: str, actual: str) -> Check:
    if claimed == actual:
        return Check(name, True, f"{noun} is the one audited")
    return Check(
        name, False, f"{noun} is not the one audited", differences=(Difference("all", "digest", claimed, actual),)
    )


def _check_input(certificates: Certificates, rows: EvidenceRows) -> Check:
    claimed, n_audited = certificates.manifest["input"]["digest"], certificates.manifest["input"]["rows"]
    if n_audited != len(certificates):  # a selection, such as the most fragile: the digest is over all rows audited
        if len(rows) != n_audited:
            return Check(
                "input",
                False,
                f"these {len(certificates)} certificates were selected from an audit of {n_audited} rows; "
                f"give those rows, got {len(rows)}",
            )
        return _equality("input", "the data", claimed, combine_digests(input_row_digests(rows)))
    wanted = {str(own_id) for own_id in certificates.claims.ids}
    digests = [
        digest for own_id, digest in zip(rows.ids, input_row_digests(rows), strict=True) if str(own_id) in wanted
    ]
    if len(digests) < len(wanted):
        return Check(
            "input",
            False,
            f"{len(wanted) - len(digests)} of the {len(wanted)} audited rows are not among the rows given",
        )
    return _equality("input", "the data", claimed, combine_digests(digests))


def _check_recomputation(
    certificates: Certificates, rows: EvidenceRows, sample: int | None, progress: bool | None
) -> Check:
    claims = certificates.claims
    place = {str(own_id): i for i, own_id in enumerate(rows.ids)}
    chosen = [i for i in _chosen(certificates, sample) if str(claims.ids[i]) in place]
    if not chosen:
        return Check("recomputation", False, "none of the audited rows is among the rows given")
    mine = rows.take([place[str(claims.ids[i])] for i in chosen])
    with progress_bar("recomputing", progress) as report:
        trace = trace_blackbox(mine, certificates.protocol, progress=report)
    fresh = claims_from(trace, mine, certificates.protocol)
    tolerance = declared_tolerance(certificates.protocol)["margin"]
    differences = compare_claims(_subset(claims, chosen), fresh, certificates.protocol, tolerance, certificates.classes)
    which = "all" if len(chosen) == len(claims) else f"{len(chosen)} of"
    bad = len({difference.row for difference in differences})
    told = f"{bad} rows do not hold" if differences else "every claim holds"
    return Check(
        "recomputation",
        not differences,
        f"{which} {len(claims)} rows recomputed, {told}",
        tolerance,
        tuple(differences),
    )


def _chosen(certificates: Certificates, sample: int | None) -> list[int]:
    everyone = list(range(len(certificates)))
    if sample is None or sample >= len(everyone):
        return everyone
    # Digests scatter rows evenly and cannot be steered by whoever ordered the table.
    digests = certificates.table.column("digest").to_pylist()
    return sorted(sorted(everyone, key=lambda i: digests[i])[:sample])


def _subset(claims: Claims, chosen: Sequence[int]) -> Claims:
    picked = {name: getattr(claims, name)[chosen] for name in Claims.__dataclass_fields__ if name != "ids"}
    return Claims(ids=tuple(claims.ids[i] for i in chosen), **picked)


def compare_claims(
    claimed: Claims, fresh: Claims, protocol: Protocol, tolerance: float, classes: Sequence[Any]
) -> list[Difference]:
    """Return every claim that differs: exact ones at all, floats by more than their tolerance."""
    allowed = _tolerances(fresh, protocol, tolerance)
    names = {"path": protocol.group_names, "predicted": classes, "path_predicted": classes}
    out: list[Difference] = []
    for name in Claims.__dataclass_fields__:
        if name == "ids":
            continue
        a, b = getattr(claimed, name), getattr(fresh, name)
        if name in EXACT:
            differs = a != b
        else:
            with np.errstate(invalid="ignore"):
                differs = ~(np.abs(a - b) <= _shaped(allowed[name], a))
        rows = np.flatnonzero(differs if differs.ndim == 1 else differs.any(axis=1))
        out += [
            Difference(claimed.ids[i], name, _shown(a[i], names.get(name)), _shown(b[i], names.get(name))) for i in rows
        ]
    return out


def _tolerances(fresh: Claims, protocol: Protocol, tolerance: float) -> dict[str, Floats]:
    """Return each float claim's tolerance: margins as declared, the rest by how margins enter them."""
    n = len(fresh)
    scale = 1.0 + np.abs(fresh.path_margin).max(axis=1) * 1e-3
    margin = np.full(n, tolerance) * scale
    # c_k = (m - m_k) / (|m| + epsilon): near a tie a rounding error of the margin is large beside m.
    ratio = margin * (2.0 + fresh.path_collapse.max(axis=1)) / (np.abs(fresh.margin) + EPSILON)
    ratio = np.minimum(ratio, 1.0) if protocol.reading == "support" else ratio
    return {
        "confidence": margin,
        "margin": margin,
        "path_margin": margin,
        "one_step_drop": 2 * margin,
        "one_step_confidence_drop": 2 * margin,
        "path_collapse": ratio + 1e-12,
        "rcma": ratio + 1e-12,
        "fds": ratio * protocol.weights[0] + 1e-12,
    }


def _shaped(tolerance: Floats, like: Floats) -> Floats:
    return tolerance if like.ndim == 1 else tolerance[:, None]


def _shown(value: Any, names: Sequence[Any] | None) -> Any:
    if names is None:
        return value.tolist() if isinstance(value, np.ndarray) else value.item()
    return [names[i] for i in value] if isinstance(value, np.ndarray) else names[int(value)]
