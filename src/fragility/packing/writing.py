"""`pack` writes a pack; `verify_pack` derives everything in it again from its sources, and compares bytes.

From the sources follow verdicts, report, figures, answers and pages.
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
    list_given,
    list_sources,
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
    """What follows from the sources of a pack."""

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
        values=True,  # the sources have none but those that were asked for
    )
    (audited,) = report.summary.audits
    # The place of the audit is the one in the pack, wherever it lay when the report was made.
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


PREDICATE = "https://fragility.invalid/pack/v1"  # a name, as those of fragility.base.envelopes
HOLDS = "the pack holds: its figures and pages follow from its sources"
HOLDS_AS_SIGNED = "the pack holds: its figures follow from its sources, and its pages are those that were signed"
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
    """Write an audit and what was concluded from it into one folder or archive, to hand over.

    The pack holds the audit, its report and protocol, what else is given, a copy of the verifier in one file that
    shares no code with this library, and an index that says what was shown and what was not, with a map to the
    questions of supervisors and lawmakers. Every figure has its source, and
    :func:`verify_pack` computes it again. The same input gives the same bytes.

    Parameters
    ----------
    audit : path
        The folder of an audit.
    out : path
        The pack: an archive if its name ends in ``.zip``, else a folder. Only a pack may lie there already.
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
        Whether the examples of these comparisons keep the values of their rows; else they name fields alone.
    reliability : FailureProbability, optional
        From :func:`assess_reliability`, of the audited rows.
    min_confidence : float, optional
        Where confident begins; by default as the protocol declares.
    certificates : bool, default=True
        Whether to pack the certificates themselves; without them the pack names them by digest, and to check it takes
        the audit's folder.
    key : path, optional
        A private key, as :func:`generate_keys` writes it: signs the copy of the audit and the pack as a whole.
    public_key : path, optional
        The public key for an earlier signature of the audit; an invalid signature is refused.
    title : str, default="Evidence pack"
        What the index is called.
    author : str, optional
        Who made the pack.
    purpose : str, optional
        What it was made for.
    date : str, optional
        Its date. None is looked up, so that the same input gives the same bytes.

    Returns
    -------
    pathlib.Path
        The pack.

    Raises
    ------
    DataError
        Something is there that is no pack, or what was given does not belong to the audit.
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
            ", which is for an earlier signature, has no use; leave one of them out",
        )
    if target.resolve().is_relative_to(source.resolve()):
        raise DataError(f"{target} lies in the folder of the audit, which stays as it is; choose another place")
    for folder in (source, *([] if against is None else [Path(against)])):
        wrong = [check for check in check_integrity(folder) if not check.passed]
        if wrong:
            raise CertificateError(f"{folder} cannot be packed, its {wrong[0].name} is wrong: {wrong[0].detail}")
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
                load_public_key(public_key)  # refuses a private one, and what is no key
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
    """Put what was given beside the audit, each in the one form that a pack has it in."""
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
    for place, one in enumerate(compared):
        if not isinstance(one, ModelParity):
            raise DataError(f"parity must be what check_parity returns, got {type(one).__name__}")
        (folder / PARITY).mkdir(exist_ok=True)
        (one if values else one.without_values()).save(folder / PARITY / f"{place}.json")
    if reliability is not None:
        if not isinstance(reliability, FailureProbability):
            raise DataError(
                f"reliability must be what assess_reliability returns, got {type(reliability).__name__}; "
                "FailureProbability.load reads a file of it"
            )
        reliability.save(folder / RELIABILITY)


def _write_stress(folder: Path, table: pa.Table) -> None:
    """Write the labels of the audited rows; those of others are left out."""
    if "id" in table.column_names:
        audited = {
            id_text(i) for batch in open_audit(folder / AUDIT).batches(["id"]) for i in batch.column("id").to_pylist()
        }
        known = [id_text(own_id) in audited for own_id in table.column("id").to_pylist()]
        table = table if all(known) else table.filter(pa.array(known))
    pq.write_table(table, folder / STRESS)


def _write_labels(folder: Path, labels: Mapping[Any, Any]) -> bytes:
    """Return the true classes of the audited rows, in their order."""
    if not isinstance(labels, Mapping):
        raise DataError(f"labels must be a mapping of ids to classes, got {type(labels).__name__}")
    by_text: dict[str, str] = {}
    for own_id, label in labels.items():
        if not is_missing(label) and by_text.setdefault(id_text(own_id), str(label)) != str(label):
            known = by_text[id_text(own_id)]
            raise DataError(f"the row {own_id!r} has two labels, {known!r} and {str(label)!r}; give each row one")
    ids = [i for batch in open_audit(folder / AUDIT).batches(["id"]) for i in batch.column("id").to_pylist()]
    lacking = [own_id for own_id in ids if id_text(own_id) not in by_text]
    if lacking:
        raise DataError(*say_unlabelled(len(lacking), len(ids), lacking[0], IdSpan(ids), IdSpan(labels)))
    pairs = [[own_id, by_text[id_text(own_id)]] for own_id in ids]
    return (json.dumps(pairs, ensure_ascii=False, separators=(",", ":")) + "\n").encode()


def _write_document(folder: Path, settings: PackSettings, derived: Derived, audit: Audit) -> bytes:
    files = describe_files(folder, list_files(folder))
    data = canonical_bytes(describe_pack(settings, derived, audit, files))
    write_bytes(folder / PACK_FILE, data)
    return data


def describe_pack(settings: PackSettings, derived: Derived, audit: Audit, files: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pack's own document."""
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
    """Make everything in a pack again from its certificates, and compare; neither model nor rows are needed.

    Checked, in this order: that the pack has the files that it lists, and no others; the digest of each; that the audit
    is whole; each figure, from its source; verdicts, report and pages, which are made again and compared byte by byte;
    and the signature, if there is one or a key is given. The copy of the verifier in one file must equal the one
    installed here. Pages that another version wrote cannot be made again, so they and the verifier beside them hold
    only as far as they are signed by the key given.

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
        It is no pack, or an archive that is laid out in another way.
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
            believed = join_names([source.name for source in list_given(folder)])
            holds_text = f"{holds}; these sources are believed as they are: {believed}; {VERIFIES}"
            return Outcome(tuple(checks), holds_text)
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
        checks.append(Check("audit", False, f"{source} is another audit than the one of this pack"))
    if not all(check.passed for check in checks):
        return checks
    opened = open_audit(source)
    try:
        derived = derive(read_evidence(folder, settings, opened))
    except FragilityError as error:
        return [*checks, Check("sources", False, str(error))]
    if others := sorted({*document["files"]} - {*list_sources(folder, settings), *DERIVED}):
        return [*checks, Check("sources", False, f"{others[0]} is neither a source of a pack nor follows from one")]
    signature = _check_signature(folder, data, public_key)
    signed = public_key is not None and all(check.passed for check in signature)
    details = "; ".join(f"{source.name}: {source.checked}" for source in list_given(folder))
    checks.append(Check("sources", True, f"only this was checked of them: {details}"))
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
    there = [name for name in list_files(folder) if name not in (PACK_FILE, SIGNATURE_FILE)]
    if missing := sorted(set(listed) - set(there)):
        return Check("files", False, f"{missing[0]} is listed in {PACK_FILE} and missing here")
    if added := sorted(set(there) - set(listed)):
        return Check("files", False, f"{added[0]} is no file of this pack: {PACK_FILE} does not list it")
    present = describe_files(folder, there)
    if changed := [name for name in there if present[name] != listed[name]]:
        return Check("files", False, f"{changed[0]} was changed: {PACK_FILE} states another digest")
    return Check("files", True, f"{len(there)} files, each with the digest that {PACK_FILE} states")


def _check_figures(document: dict[str, Any], derived: Derived) -> Check:
    """Compute each figure again, from the source that it states."""
    computed = {figure.name: encode(figure.to_dict()) for figure in derived.figures}
    names = [stated["name"] for stated in document["figures"]]
    if len(names) > MOST_FIGURES or len(set(names)) < len(names):
        return Check("figures", False, f"{PACK_FILE} lists {len(names)} figures, too many or one of them twice")
    if document["fragility"] == __version__ and names != list(computed):
        other = next((name for name in [*names, *computed] if name not in computed or name not in names), names[0])
        return Check("figures", False, f"{PACK_FILE} lists other figures than this pack has: {other!s:.80}")
    for stated in document["figures"]:
        fresh = computed.get(stated["name"])
        if fresh is not None and fresh["source"] == stated["source"]:
            value = fresh["value"]
        else:
            fresh, value = None, encode(derived.reader.compute(_decode_floats(stated["source"])))
        if value != stated["value"]:
            return Check("figures", False, f"{stated['name']} is stated as {stated['value']}, its source gives {value}")
        if fresh is not None and fresh != stated:
            return Check(
                "figures", False, f"{stated['name']} is shown as {stated['shown']!r:.80}, it is {fresh['shown']}"
            )
    return Check("figures", True, f"{len(document['figures'])} figures, each computed again from its source")


def _decode_floats(value: Any) -> Any:
    """Return a source as it was before its floats were written in hexadecimal."""
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
    """Compare verdicts, report, answers and pages with those made again."""
    listed = {name for name in document["files"] if name in DERIVED}
    if document["fragility"] != __version__:
        message = f"written by fragility {document['fragility']!s:.40}, so they cannot be made again by {__version__}; "
        remedy = "they are as they were signed" if signed else "check the pack with that version, or with a public key"
        return Check("pages", signed, message + remedy)
    for name, data in derived.files.items():
        if name not in listed or document["files"][name]["digest"] != digest_bytes(data):
            other = "the one of this installation" if name == CHECKER else "what follows from the sources of this pack"
            return Check("pages", False, f"{name} is not {other}")
    if listed - set(derived.files):
        return Check(
            "pages", False, f"{min(listed - set(derived.files))} does not follow from the sources of this pack"
        )
    if document != encode(describe_pack(settings, derived, audit, document["files"])):
        return Check("pages", False, f"{PACK_FILE} is not what follows from the sources of this pack")
    count = len(derived.files) - 1
    return Check("pages", True, f"{count} files, made again and equal; {CHECKER} is the one of this installation")


def _check_signature(folder: Path, data: bytes, public_key: Any) -> list[Check]:
    """Verify the signature by the key given; without one by that of the pack, which only shows that they agree."""
    path, pack_key = folder / SIGNATURE_FILE, folder / PACK_KEY
    if public_key is None and not path.exists() and not pack_key.exists():
        return []
    if not path.exists():
        lost = f"; it was, by the key in {PACK_KEY}" if pack_key.exists() else ""
        return [Check("signature", False, f"this pack is not signed{lost}")]
    if public_key is None and not pack_key.exists():
        return [Check("signature", False, f"{SIGNATURE_FILE} is there without {PACK_KEY}, as no pack is written")]
    key = load_public_key(pack_key if public_key is None else public_key)
    envelope = read_envelope(read_file(path, path.name), path.name)
    statement = read_statement(envelope, path.name)
    if not is_signed_by(envelope, key):
        return [Check("signature", False, f"{SIGNATURE_FILE} has no valid signature by this key")]
    if statement != _state_pack(data):
        return [Check("signature", False, "another pack was signed than the one here")]
    origin = "" if public_key is not None else ", which is in this pack; whose it is, a public key from elsewhere tells"
    return [Check("signature", True, f"by the key {key.keyid[:16]}{origin}")]
