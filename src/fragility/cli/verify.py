"""`fragility verify`: check whatever of ours somebody was handed, an audit, a pack, a proof, a protocol or a signature.

What a path holds is read from it, never guessed from its name alone. Each kind has options of its own, and those of
other kinds are refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

import fragility as fg
import fragility.cli.options as opt
from fragility.base.errors import DataError, FragilityError, VerificationError
from fragility.base.files import JSON_LIMIT, parse_json, read_bounded
from fragility.cli.options import argument, load_protocol, option, refuse_beside, refuse_without
from fragility.cli.outputs import plan_results, save_result
from fragility.cli.tables import (
    Columns,
    field_names,
    note_unlabelled,
    open_data,
    read_rows,
    read_training,
)
from fragility.cli.terminal import EXIT_CLAIM_FAILED, out

# Options without effect where nothing is recomputed.
BY_MODEL = (
    *("target", "train", "id_column", "rows", "sample", "separator", "encoding", "decimal"),
    *("classes", "trust", "returns", "drop", "ignore_extra"),
)
# Kind -> its name in a sentence, and the options that have an effect on it.
KINDS = {
    "audit": ("an audit", ("model", "data", *BY_MODEL, "public_key", "protocol_key")),
    "pack": ("a pack", ("audit", "public_key")),
    "proof": ("a proof", ("root", "public_key", "signature")),
    "protocol": ("a protocol", ("model", "data", *BY_MODEL, "public_key")),
    "signature": ("a signature", ("public_key", "protocol_key")),
}
OPTIONS = tuple(dict.fromkeys(name for _, names in KINDS.values() for name in names))


def verify(
    *,
    context: typer.Context,
    path: Annotated[
        Path, argument("PATH", "An audit's folder, a pack, a proof, a protocol file or a signature: it is found out.")
    ],
    model: opt.SomeModel = None,
    data: opt.SomeData = None,
    target: opt.Target = None,
    columns: opt.ColumnOptions,
    train: opt.SomeTrain = None,
    sample: Annotated[int | None, option("--sample N", "Recompute only N rows, chosen at random.", min=1)] = None,
    public_key: opt.PublicKey = None,
    out_files: Annotated[list[Path] | None, opt.results(".json", ".txt", ".md", ".html")] = None,
    protocol_key: Annotated[
        Path | None,
        option("--protocol-key PUB", "The key of whoever signed the protocol, if another's.", panel=opt.PROOFS),
    ] = None,
    root: Annotated[
        str | None,
        option("--root DIGEST", "Of a proof: the audit's root digest, from where you trust it.", panel=opt.PROOFS),
    ] = None,
    signature: Annotated[
        Path | None,
        option("--signature FILE", "Of a proof: the audit's signature.dsse.json, which has a root.", panel=opt.PROOFS),
    ] = None,
    audit: Annotated[
        Path | None,
        option("--audit DIR", "Of a pack without certificates: the audit's folder.", panel=opt.PROOFS),
    ] = None,
    rows: opt.RowRange = None,
    csv: opt.CsvOptions,
    loading: opt.LoadingOptions,
) -> None:
    """Check an audit, a pack, a proof, a protocol or a signature.

    It says what holds and what was not checked. With --model and --data an audit's claims are recomputed, with
    --train the fit of its protocol, with --public-key the signature. A protocol is checked against its model and
    rows. Packs and proofs need neither.

    Exit code 0: every claim checked holds. 1: one does not, and which. 2: it could not be checked.

    [bold]Examples[/bold]

      fragility verify audit/ --model model.skops --data test.parquet --target class

      fragility verify pack.zip --public-key audit-key.pub

      fragility verify proof.json --root sha256:...
    """
    inputs = {"PATH": path, "--model": model, "--data": data, "--train": train, "--public-key": public_key}
    inputs |= {"--protocol-key": protocol_key, "--signature": signature}
    plan_results(out_files, (".json", ".txt", ".md", ".html"), inputs)
    kind = find_kind(path)
    noun, own = KINDS[kind]
    refuse_beside(context, f"has no effect on {noun}", [name for name in OPTIONS if name not in own])
    if kind == "pack":
        outcome: Any = fg.verify_pack(path, audit=audit, public_key=public_key)
    elif kind == "proof":
        outcome = fg.verify_proof(path, root=root, public_key=public_key, signature=signature)
    elif kind == "signature":
        outcome = _verify_signature(path, public_key, protocol_key)
    elif model is not None and data is not None:
        if public_key is None:
            refuse_without("--public-key", context, "protocol_key")
        recompute = _recompute_protocol if kind == "protocol" else _recompute_audit
        outcome = recompute(path, model, data, Asked(target, columns, rows, train, sample, csv, loading))
        if public_key is not None:
            outcome = replace(outcome, checks=(*outcome.checks, *_check_signatures(path, public_key, protocol_key)))
    else:
        _check_keys_suffice(model, data, public_key)
        refuse_without("--model and --data", context, *BY_MODEL)
        assert public_key is not None
        outcome = fg.verify_signature(path, public_key, protocol_key=protocol_key)
    out().print(escape(str(outcome)))
    save_result(outcome, out_files)
    if not outcome:
        raise typer.Exit(EXIT_CLAIM_FAILED)


def find_kind(path: Path) -> str:
    """Return what a path holds: audit, pack, proof, protocol or signature."""
    from fragility.audits.folder import check_is_audit
    from fragility.packing.archive import PACK_FILE, SUFFIX

    if path.is_dir():
        if (path / PACK_FILE).exists():
            return "pack"
        check_is_audit(path)  # what is no audit cannot be checked, which is not the same as a false claim
        return "audit"
    if path.suffix.lower() == SUFFIX:
        return "pack"
    try:
        document = parse_json(read_bounded(path, JSON_LIMIT).decode("utf-8"))
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is none of what can be verified: {EXPECTED}") from error
    stated = document.get("format") if isinstance(document, dict) else None
    kind = re.match(r"fragility-(proof|protocol)/", stated) if isinstance(stated, str) else None
    if kind is not None:
        return kind[1]
    if isinstance(document, dict) and "payloadType" in document:
        return "signature"
    raise DataError(f"{path} is none of what can be verified: {EXPECTED}")


EXPECTED = "an audit's folder, a pack (folder or .zip), a proof, a protocol file or a signature"


@dataclass(frozen=True)
class Asked:
    """How the rows and the model are to be read."""

    target: str | None
    columns: opt.ColumnOptions
    rows: str | None
    train: Path | None
    sample: int | None
    csv: opt.CsvOptions
    loading: opt.LoadingOptions


def _recompute_audit(folder: Path, model: str, data: str, asked: Asked) -> Any:
    """Recompute the claims of an audit, by the model and the rows."""
    if asked.columns.drop or asked.columns.ignore_extra:
        raise DataError("the audit's protocol names its fields, so other columns are left out; leave out --drop")
    form, id_column = asked.csv.form(data), asked.columns.id_column
    loaded = asked.loading.load(model)
    source = open_data(data, form, target=asked.target, id_column=id_column, rows=asked.rows)
    try:
        protocol = load_protocol(folder)
    except FragilityError:
        protocol = None  # verify says why it cannot be read
    own = Columns(asked.target, id_column, fields=field_names(loaded, protocol))  # refuses fields of the model
    note_unlabelled(asked.target in source.column_names, asked.target, data)
    source = replace(source, fields=() if protocol is None else protocol.fields)
    training = None if asked.train is None else read_training(asked.train, own, asked.csv.form(asked.train))
    return fg.verify(folder, loaded, source, sample=asked.sample, train=training)


def _recompute_protocol(path: Path, model: str, data: str, asked: Asked) -> Any:
    """Check that a protocol fits the model and the rows, and with training rows that it is fitted on them."""
    from fragility.verification.verifying import verify_protocol

    if asked.sample is not None:
        raise DataError("--sample is for the claims of an audit; take fewer rows with --rows")
    form = asked.csv.form(data, asked.train)
    loaded, protocol = asked.loading.load(model), load_protocol(path)
    known = asked.columns.declare(field_names(loaded, protocol), asked.target)
    given = read_rows(data, known, rows=asked.rows, form=form)
    training = None if asked.train is None else read_training(asked.train, known, form)
    known.check_dropped()
    note_unlabelled(given.labels is not None, asked.target, data)
    return verify_protocol(protocol, loaded, given.X, ids=given.ids, train=training)


def _check_signatures(path: Path, public_key: Path, protocol_key: Path | None) -> tuple[Any, ...]:
    from fragility.trust.signing import SIGNATURE_FILE, signature_checks

    if path.is_dir():
        return tuple(signature_checks(path, public_key, path / SIGNATURE_FILE, protocol_key))
    return fg.verify_signature(path, public_key).checks


def _verify_signature(path: Path, public_key: Path | None, protocol_key: Path | None) -> Any:
    """Check a signature together with what it lies beside: an audit, a pack or a protocol file."""
    from fragility.trust.signing import SIGNATURE_FILE, SIGNATURE_SUFFIX

    if public_key is None:
        raise VerificationError("a signature is checked by the key of its signer; name it with --public-key")
    signed = path.parent if path.name == SIGNATURE_FILE else path.with_name(path.name.removesuffix(SIGNATURE_SUFFIX))
    if signed == path or not signed.exists():
        raise DataError(f"what {path} signs does not lie beside it; name the audit, the pack or the protocol instead")
    kind = find_kind(signed)
    if kind != "audit" and protocol_key is not None:
        raise DataError(f"--protocol-key has no effect on the signature of {KINDS[kind][0]}; leave it out")
    if kind == "pack":
        return fg.verify_pack(signed, public_key=public_key)
    return fg.verify_signature(signed, public_key, signature=path, protocol_key=protocol_key)


def _check_keys_suffice(model: str | None, data: str | None, public_key: Path | None) -> None:
    """Refuse to verify without a model, rows or a key; without any of them nothing would be checked."""
    if model is not None or data is not None or public_key is None:
        lacking = "--model MODEL" if model is None else "--data DATA"
        raise VerificationError(
            f"{lacking} is missing: claims are recomputed with --model and --data; --public-key alone says who signed"
        )
