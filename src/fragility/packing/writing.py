"""`pack` writes a pack; `verify_pack` derives everything in it again from its sources, and compares bytes.

Verdicts, report, figures, answers and pages are derived from the sources.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fragility.audits import Audit, open_audit
from fragility.audits.folder import manifest_bytes, read_file
from fragility.audits.integrity import check_integrity
from fragility.base.arrays import is_number
from fragility.base.canonical import DIGEST_PREFIX, canonical_bytes, digest_bytes, encode, is_missing
from fragility.base.envelopes import PAYLOAD_TYPE, Envelope, Statement, read_envelope, read_statement
from fragility.base.errors import Advice, CertificateError, DataError, FragilityError, VerificationError
from fragility.base.files import SIGNATURE, write_bytes
from fragility.base.ids import IdSpan, id_text, say_unlabelled
from fragility.blocks.checks import MALFORMED, Check
from fragility.packing.archive import (
    FORMAT,
    PACK_FILE,
    check_target,
    describe_files,
    list_files,
    open_pack,
    read_pack_document,
    staging,
)
from fragility.packing.pages import Finding, find_answers, render_card, render_index
from fragility.packing.sources import (
    AUDIT,
    AUDIT_KEY,
    CARD,
    CHECKER,
    DERIVED,
    EARLIER,
    INDEX,
    LABELS,
    PACK_KEY,
    PARITY,
    PROTOCOL,
    RELIABILITY,
    REPORT,
    REPORT_NUMBERS,
    RULES,
    STRESS,
    VERDICTS,
    VERDICTS_TEXT,
    Evidence,
    PackFigure,
    PackSettings,
    SourceReader,
    audit_files,
    list_figures,
    list_sources,
    list_trusted,
    read_checker,
    read_evidence,
)
from fragility.pages.wording import join_names
from fragility.parity import ModelParity
from fragility.questions.reliability.outcomes import FailureProbability
from fragility.questions.stress.labels import BrittleLabels
from fragility.report import Report
from fragility.trust.signing import (
    SIGNATURE_FILE,
    is_signed_by,
    load_private_key,
    load_public_key,
    public_pem,
    sign,
    with_signature,
)
from fragility.verification.outcome import Outcome
from fragility.version import __version__


@dataclass(frozen=True, eq=False)
class Derived:
    """Everything that is derived from the sources of a pack."""

    figures: tuple[PackFigure, ...]
    findings: tuple[Finding, ...]
    files: Mapping[str, bytes]
    reader: SourceReader  # that computed the figures


def derive(evidence: Evidence) -> Derived:
    """Return the figures, answers and files of a pack; nothing is written."""
    settings, audit, verdicts = evidence.settings, evidence.audit, evidence.verdicts
    report = Report.of(
        audit,
        name=AUDIT,
        labels=evidence.labels,
        brittle=evidence.stress,
        min_confidence=settings.min_confidence,
        verify=f"fragility verify {AUDIT} --model MODEL --data DATA",
        author=settings.author,
        purpose=settings.purpose,
        date=settings.date,
        signed_by=None if evidence.verified is None else evidence.verified[:16],
        parity=evidence.parities,
        values=True,  # the sources contain only values that the user asked for
    )
    (audited,) = report.summary.audits
    # The report names the folder of the audit in the pack, wherever the audit was read from.
    placed = replace(audited, facts=replace(audited.facts, folder=AUDIT))
    report = Report(replace(report.summary, audits=(placed,)))
    numbers = json.dumps(report.to_dict(), ensure_ascii=False, allow_nan=False, indent=1) + "\n"
    files = {PROTOCOL: audit.protocol.to_json(), REPORT: report.to_html(), REPORT_NUMBERS: numbers}
    if verdicts is not None:
        files[VERDICTS] = json.dumps(verdicts.to_dict(), ensure_ascii=False, allow_nan=False, indent=2) + "\n"
        files[VERDICTS_TEXT] = verdicts.to_markdown()
    in_memory = {VERDICTS: verdicts.to_dict()} if verdicts is not None else {}
    reader = SourceReader(evidence.folder, audit, in_memory)
    figures = tuple(list_figures(reader, settings.min_confidence))
    findings = tuple(find_answers(figures))
    files[INDEX] = render_index(evidence, figures, findings)
    files[CARD] = render_card(evidence, figures, findings)
    files[CHECKER] = read_checker()
    return Derived(figures, findings, {name: text.encode() for name, text in files.items()}, reader)


PREDICATE = "https://fragility.invalid/pack/v1"  # an identifier, like those in fragility.base.envelopes
HOLDS = "the pack is valid: its figures and pages follow from its sources"
HOLDS_AS_SIGNED = "the pack is valid: its figures follow from its sources, and its pages are those that were signed"
VERIFIES = "fragility verify recomputes certificates, from the model and the rows"
MOST_FIGURES = 1000  # that a pack of any version may list


def pack(
    audit: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    rules: str | os.PathLike[str] | None = None,
    against: str | os.PathLike[str] | None = None,
    labels: Mapping[Hashable, Any] | None = None,
    stress: BrittleLabels | pa.Table | None = None,
    parity: ModelParity | Sequence[ModelParity] = (),
    values: bool = False,
    reliability: FailureProbability | None = None,
    min_confidence: float | None = None,
    certificates: bool = True,
    key: str | os.PathLike[str] | None = None,
    public_key: str | os.PathLike[str] | None = None,
    title: str = "Evidence pack",
    author: str | None = None,
    purpose: str | None = None,
    date: str | None = None,
) -> Path:
    """Write an audit and its conclusions into one folder or archive, to hand over.

    The pack contains the audit, its report and protocol, the optional evidence below, a copy of the verifier in one
    file, which shares no code with this library, and an index that says what was shown and what was not, with a map to
    the questions of supervisors and lawmakers. Every figure has its source, and
    :func:`verify_pack` computes it again. The same input gives the same bytes.

    Parameters
    ----------
    audit : path
        The folder of an audit.
    out : path
        The pack: an archive if its name ends in ``.zip``, else a folder. Only an existing pack is overwritten.
    rules : path, optional
        The rules of a gate (TOML); the audit is judged by them. Rules by a column of the rows are refused.
    against : path, optional
        An earlier audit, for rules with an allowance; it is packed too.
    labels : mapping of id to class, optional
        True classes of every audited row; they are packed too.
    stress : BrittleLabels or pyarrow.Table, optional
        Labels of held-out stress, from :func:`label_brittle`; they are packed too.
    parity : ModelParity or sequence of ModelParity, default=()
        Comparisons of the audited model with other artefacts of it, from :func:`check_parity`.
    values : bool, default=False
        Whether the examples of these comparisons keep the values of their rows, or only the names of fields.
    reliability : FailureProbability, optional
        From :func:`assess_reliability`, of the audited rows.
    min_confidence : float, optional
        The threshold of confidence; by default as the protocol declares.
    certificates : bool, default=True
        Whether to pack the certificates themselves; else the pack names them by digest, and checking it requires the
        audit's folder.
    key : path, optional
        A private key, as :func:`generate_keys` writes it, that signs the copy of the audit and the whole pack.
    public_key : path, optional
        The public key for an earlier signature of the audit; an invalid signature is refused.
    title : str, default="Evidence pack"
        The title of the index.
    author : str, optional
        Who made the pack.
    purpose : str, optional
        What it was made for.
    date : str, optional
        Its date. The clock is not read, so that the same input gives the same bytes.

    Returns
    -------
    pathlib.Path
        The pack.

    Raises
    ------
    DataError
        ``out`` exists and is not a pack, or an argument does not belong to the audit.
    CertificateError
        The audit's files contradict each other; nothing is packed.

    See Also
    --------
    verify_pack : Make everything in a pack again, and compare.
    verify : Recompute what the certificates claim.

    Examples
    --------
    >>> import fragility as fg
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = fg.load_credit_g()
    >>> X = X[["duration", "age", "installment_commitment"]]
    >>> model = LogisticRegression().fit(X, y)
    >>> certs = fg.audit(model, X[:100], fg.Protocol.fit(model, X))
    >>> with TemporaryDirectory() as home:
    ...     folder = certs.save(Path(home) / "audit")
    ...     pack = fg.pack(folder, Path(home) / "pack.zip")
    ...     bool(fg.verify_pack(pack))
    True
    """
    source, target = Path(audit), Path(out)
    check_target(target)
    if key is not None and public_key is not None:
        raise DataError(
            Advice("key", "--key"),
            " signs the audit anew, so ",
            Advice("public_key", "--public-key"),
            ", which is for an earlier signature, has no effect; leave one of them out",
        )
    if target.resolve().is_relative_to(source.resolve()):
        raise DataError(f"{target} lies in the folder of the audit, which pack does not change; choose another place")
    for folder in (source, *([] if against is None else [Path(against)])):
        failed = [check for check in check_integrity(folder) if not check.passed]
        if failed:
            raise CertificateError(f"{folder} cannot be packed, its {failed[0].name} is wrong: {failed[0].detail}")
    level = open_audit(source).confident_from(min_confidence)
    level = float(level) if is_number(level) else level
    settings = PackSettings(title, level, certificates, author, purpose, date)
    try:
        with staging(target) as folder:
            _copy_audit(source, folder / AUDIT, certificates=True)
            if against is not None:
                if rules is None:
                    raise DataError("an earlier audit is for rules with an allowance; add ", Advice("rules", "--rules"))
                _copy_audit(Path(against), folder / EARLIER, certificates=True)
            _copy_documents(folder, rules, labels, stress, parity, values, reliability)
            if public_key is not None:
                load_public_key(public_key)  # refuses a private key, and anything that is not a key
                (folder / AUDIT_KEY).parent.mkdir(exist_ok=True)
                shutil.copyfile(public_key, folder / AUDIT_KEY)
            if key is not None:
                sign(folder / AUDIT, key)
                for name in (AUDIT_KEY, PACK_KEY):
                    (folder / name).parent.mkdir(exist_ok=True)
                    write_bytes(folder / name, public_pem(load_private_key(key)))
            derived = derive(read_evidence(folder, settings))
            if not certificates:
                _leave_out_certificates(folder)
            for name, data in derived.files.items():
                (folder / name).parent.mkdir(exist_ok=True)
                write_bytes(folder / name, data)
            data = _write_document(folder, settings, derived, open_audit(source))
            if key is not None:
                _sign_pack(folder, data, load_private_key(key))
    except OSError as error:
        raise DataError(f"cannot write the pack {target}: {error.strerror or error}") from error
    return target


def _copy_audit(source: Path, target: Path, *, certificates: bool) -> None:
    target.mkdir()
    for name in audit_files(source, certificates=certificates):
        shutil.copyfile(source / name, target / name)


def _leave_out_certificates(folder: Path) -> None:
    kept = set(audit_files(folder / AUDIT, certificates=False))
    for path in (folder / AUDIT).iterdir():
        if path.name not in kept:
            path.unlink()


def _copy_documents(
    folder: Path,
    rules: Any,
    labels: Any,
    stress: Any,
    parity: Any,
    values: bool,
    reliability: FailureProbability | None,
) -> None:
    """Write the sources other than the audit, each in the form of a pack."""
    if rules is not None:
        (folder / RULES).parent.mkdir()
        text = read_file(rules, f"the rules {rules}", f"there is no file of rules {rules}")
        write_bytes(folder / RULES, text)
    if labels is not None:
        write_bytes(folder / LABELS, _write_labels(folder, labels))
    if stress is not None:
        table = stress.to_arrow() if isinstance(stress, BrittleLabels) else stress
        if not isinstance(table, pa.Table):
            raise DataError(f"stress must be what label_brittle returns, or its table, got {type(stress).__name__}")
        _write_stress(folder, table)
    compared = (parity,) if isinstance(parity, ModelParity) else tuple(parity)
    for place, comparison in enumerate(compared):
        if not isinstance(comparison, ModelParity):
            raise DataError(f"parity must be what check_parity returns, got {type(comparison).__name__}")
        (folder / PARITY).mkdir(exist_ok=True)
        (comparison if values else comparison.without_values()).save(folder / PARITY / f"{place}.json")
    if reliability is not None:
        if not isinstance(reliability, FailureProbability):
            raise DataError(
                f"reliability must be what assess_reliability returns, got {type(reliability).__name__}; "
                "FailureProbability.load reads it from a file"
            )
        reliability.save(folder / RELIABILITY)


def _write_stress(folder: Path, table: pa.Table) -> None:
    """Write the labels of the audited rows, without those of other rows."""
    if "id" in table.column_names:
        audited = {id_text(row_id) for row_id in _read_ids(folder)}
        is_audited = [id_text(row_id) in audited for row_id in table.column("id").to_pylist()]
        table = table if all(is_audited) else table.filter(pa.array(is_audited))
    pq.write_table(table, folder / STRESS)


def _read_ids(folder: Path) -> list[Hashable]:
    """Return the ids of the audited rows, in their order."""
    return [i for batch in open_audit(folder / AUDIT).batches(["id"]) for i in batch.column("id").to_pylist()]


def _write_labels(folder: Path, labels: Mapping[Any, Any]) -> bytes:
    """Return the true classes of the audited rows, in their order."""
    if not isinstance(labels, Mapping):
        raise DataError(f"labels must be a mapping of ids to classes, got {type(labels).__name__}")
    by_text: dict[str, str] = {}
    for row_id, label in labels.items():
        if not is_missing(label) and by_text.setdefault(id_text(row_id), str(label)) != str(label):
            first = by_text[id_text(row_id)]
            raise DataError(f"the row {row_id!r} has two labels, {first!r} and {str(label)!r}; give each row one")
    ids = _read_ids(folder)
    lacking = [row_id for row_id in ids if id_text(row_id) not in by_text]
    if lacking:
        raise DataError(*say_unlabelled(len(lacking), len(ids), lacking[0], IdSpan(ids), IdSpan(labels)))
    pairs = [[row_id, by_text[id_text(row_id)]] for row_id in ids]
    return (json.dumps(pairs, ensure_ascii=False, separators=(",", ":")) + "\n").encode()


def _write_document(folder: Path, settings: PackSettings, derived: Derived, audit: Audit) -> bytes:
    files = describe_files(folder, list_files(folder))
    text = canonical_bytes(describe_pack(settings, derived, audit, files))
    write_bytes(folder / PACK_FILE, text)
    return text


def describe_pack(settings: PackSettings, derived: Derived, audit: Audit, files: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pack's document."""
    return {
        "format": FORMAT,
        "fragility": __version__,
        "model": {"kind": audit.manifest.model.kind, "fingerprint": audit.manifest.model.fingerprint},
        "root_digest": audit.manifest.root_digest,
        "settings": asdict(settings),
        "figures": [figure.to_dict() for figure in derived.figures],
        "answers": [finding.to_dict() for finding in derived.findings],
        "files": dict(files),
    }


def _sign_pack(folder: Path, data: bytes, signer: Any) -> None:
    envelope = with_signature(Envelope(_state_pack(data).to_bytes(), PAYLOAD_TYPE, ()), signer)
    write_bytes(folder / SIGNATURE_FILE, envelope.to_text().encode(), own=SIGNATURE)


def _state_pack(data: bytes) -> Statement:
    digest = digest_bytes(data).removeprefix(DIGEST_PREFIX)
    return Statement({PACK_FILE: {"sha256": digest}}, PREDICATE, {"format": FORMAT})


# --- checking -------------------------------------------------------------------------------------------------


def verify_pack(
    pack: str | os.PathLike[str],
    *,
    audit: str | os.PathLike[str] | None = None,
    public_key: str | os.PathLike[str] | None = None,
) -> Outcome:
    """Derive everything in a pack again from its certificates, and compare; neither model nor rows are needed.

    The checks are, in this order: the pack has exactly the files that it lists; the digest of each file; the integrity
    of the audit; each figure, from its source; verdicts, report and pages, which are made again and compared byte by
    byte; and the signature, if there is one or a key is given. The copy of the verifier in one file must equal the
    installed one. Pages that another version wrote cannot be made again; they, and the verifier beside them, are
    accepted only if the given key has signed them.

    Parameters
    ----------
    pack : path
        What :func:`pack` wrote: a folder, or an archive.
    audit : path, optional
        The audit's folder, for a pack without certificates.
    public_key : path, optional
        The public key of the expected signer, from a source that you trust.

    Returns
    -------
    Outcome
        False if a check failed.

    Raises
    ------
    CertificateError
        It is not a pack, or an archive that fragility did not write.
    VerificationError
        The certificates are not in the pack, and no audit was given; or the key cannot be used.

    See Also
    --------
    verify : Recompute the certificates themselves.
    """
    with open_pack(Path(pack)) as folder:
        document, data = read_pack_document(folder, Path(pack))
        try:
            holds = HOLDS if document["fragility"] == __version__ else HOLDS_AS_SIGNED
            checks = _run_checks(folder, document, data, audit, public_key)
            trusted = join_names([source.name for source in list_trusted(folder)])
            return Outcome(tuple(checks), f"{holds}; these sources are taken on trust: {trusted}; {VERIFIES}")
        except MALFORMED as error:
            if isinstance(error, FragilityError):
                raise
            raise CertificateError(f"{pack} is malformed: {type(error).__name__}: {error!s:.200}") from error


def _run_checks(folder: Path, document: dict[str, Any], data: bytes, audit: Any, public_key: Any) -> list[Check]:
    checks = [_check_files(folder, document["files"])]
    if not checks[0].passed:
        return checks
    settings = PackSettings.from_dict(document["settings"])
    if not settings.certificates and audit is None:
        raise VerificationError(
            "the certificates are not in this pack, so its figures cannot be computed; name the audit's folder with ",
            Advice("audit", "--audit"),
        )
    if settings.certificates and audit is not None:
        raise VerificationError("the certificates are in this pack; leave out ", Advice("audit", "--audit"))
    source = folder / AUDIT if settings.certificates else Path(audit)
    checks += check_integrity(source)
    if (folder / EARLIER).exists():
        checks += [replace(check, name=f"earlier {check.name}") for check in check_integrity(folder / EARLIER)]
    if manifest_bytes(source) != manifest_bytes(folder / AUDIT):
        checks.append(Check("audit", False, f"{source} is not the audit of this pack"))
    if not all(check.passed for check in checks):
        return checks
    opened = open_audit(source)
    try:
        derived = derive(read_evidence(folder, settings, opened))
    except FragilityError as error:
        return [*checks, Check("sources", False, str(error))]
    if others := sorted({*document["files"]} - {*list_sources(folder, settings), *DERIVED}):
        return [*checks, Check("sources", False, f"{others[0]} is neither a source of the pack nor derived from one")]
    signature = _check_signature(folder, data, public_key)
    signed = public_key is not None and all(check.passed for check in signature)
    details = "; ".join(f"{source.name}: {source.checked}" for source in list_trusted(folder))
    checks.append(Check("sources", True, f"checked only this: {details}"))
    checks.append(_check_figures(document, derived))
    version = document["fragility"]
    if version != __version__ and not signed and all(check.passed for check in (*checks, *signature)):
        raise VerificationError(
            f"not checked: files, digests and figures hold, but the pages were written by fragility {version!s:.40} "
            f"and cannot be made again by {__version__}; check the pack with that version, or with ",
            Advice("public_key", "--public-key"),
        )
    checks.append(_check_pages(folder, document, settings, derived, opened, signed=signed))
    return [*checks, *signature]


def _check_files(folder: Path, listed: Any) -> Check:
    """Compare the files of a folder with those that the pack lists."""
    names = [name for name in list_files(folder) if name not in (PACK_FILE, SIGNATURE_FILE)]
    if missing := sorted(set(listed) - set(names)):
        return Check("files", False, f"{missing[0]} is listed in {PACK_FILE} but missing")
    if added := sorted(set(names) - set(listed)):
        return Check("files", False, f"{added[0]} does not belong to this pack: {PACK_FILE} does not list it")
    present = describe_files(folder, names)
    if changed := [name for name in names if present[name] != listed[name]]:
        return Check("files", False, f"{changed[0]} was changed: its digest differs from that in {PACK_FILE}")
    return Check("files", True, f"{len(names)} files, each with the digest that {PACK_FILE} states")


def _check_figures(document: dict[str, Any], derived: Derived) -> Check:
    """Compute each figure again, from the source that it states."""
    computed = {figure.name: encode(figure.to_dict()) for figure in derived.figures}
    names = [stated["name"] for stated in document["figures"]]
    if len(names) > MOST_FIGURES or len(set(names)) < len(names):
        return Check("figures", False, f"{PACK_FILE} lists {len(names)} figures, too many or with a duplicate")
    if document["fragility"] == __version__ and names != list(computed):
        other = next((name for name in [*names, *computed] if name not in computed or name not in names), names[0])
        return Check("figures", False, f"the figures in {PACK_FILE} are not those of this pack: {other!s:.80}")
    for stated in document["figures"]:
        fresh = computed.get(stated["name"])
        if fresh is not None and fresh["source"] == stated["source"]:
            value = fresh["value"]
        else:
            fresh, value = None, encode(derived.reader.compute(_decode_floats(stated["source"])))
        if value != stated["value"]:
            return Check(
                "figures", False, f"{stated['name']} is stated as {stated['value']}, but its source gives {value}"
            )
        if fresh is not None and fresh != stated:
            return Check(
                "figures", False, f"{stated['name']} is shown as {stated['shown']!r:.80} instead of {fresh['shown']!r}"
            )
    return Check("figures", True, f"{len(document['figures'])} figures, each computed again from its source")


def _decode_floats(value: Any) -> Any:
    """Return a source with its hexadecimal floats decoded."""
    if isinstance(value, dict):
        return {name: _decode_floats(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_decode_floats(entry) for entry in value]
    if isinstance(value, str) and value.removeprefix("-").startswith("0x"):
        return float.fromhex(value)
    return value


def _check_pages(
    folder: Path, document: dict[str, Any], settings: PackSettings, derived: Derived, audit: Audit, *, signed: bool
) -> Check:
    """Compare verdicts, report, answers and pages with those derived again."""
    listed = {name for name in document["files"] if name in DERIVED}
    if document["fragility"] != __version__:
        message = f"written by fragility {document['fragility']!s:.40}, so they cannot be made again by {__version__}; "
        remedy = "they are as they were signed" if signed else "check the pack with that version, or with a public key"
        return Check("pages", signed, message + remedy)
    for name, data in derived.files.items():
        if name not in listed or document["files"][name]["digest"] != digest_bytes(data):
            expected = "the installed one" if name == CHECKER else "what the sources of this pack give"
            return Check("pages", False, f"{name} differs from {expected}")
    if listed - set(derived.files):
        added = min(listed - set(derived.files))
        return Check("pages", False, f"{added} cannot be derived from the sources of this pack")
    if document != encode(describe_pack(settings, derived, audit, document["files"])):
        return Check("pages", False, f"{PACK_FILE} differs from what the sources of this pack give")
    count = len(derived.files) - 1
    return Check("pages", True, f"{count} files, made again and equal; {CHECKER} is the installed one")


def _check_signature(folder: Path, data: bytes, public_key: Any) -> list[Check]:
    """Verify the signature with the given key, or else with the pack's key, which only shows consistency."""
    path, pack_key = folder / SIGNATURE_FILE, folder / PACK_KEY
    if public_key is None and not path.exists() and not pack_key.exists():
        return []
    if not path.exists():
        lost = f", although it contains the signer's key {PACK_KEY}" if pack_key.exists() else ""
        return [Check("signature", False, f"this pack is not signed{lost}")]
    if public_key is None and not pack_key.exists():
        return [Check("signature", False, f"{SIGNATURE_FILE} is present, but {PACK_KEY} is missing")]
    key = load_public_key(pack_key if public_key is None else public_key)
    envelope = read_envelope(read_file(path, path.name), path.name)
    statement = read_statement(envelope, path.name)
    if not is_signed_by(envelope, key):
        return [Check("signature", False, f"{SIGNATURE_FILE} has no valid signature by this key")]
    if statement != _state_pack(data):
        return [Check("signature", False, "the signature is of another pack")]
    origin = (
        "" if public_key is not None else ", which is in this pack; give a public key that you trust to check whose"
    )
    return [Check("signature", True, f"by the key {key.keyid[:16]}{origin}")]
