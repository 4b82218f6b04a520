"""`fragility verify`: check an audit, a pack, a proof, a protocol or a signature.

The kind of a file or folder is determined by its content. Each kind has its own options, and those of other kinds are
refused.
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

# Options without effect if nothing is recomputed.
BY_MODEL = (
    *("target", "train", "id_column", "rows", "sample", "separator", "encoding", "decimal"),
    *("classes", "trust", "returns", "drop", "ignore_extra"),
)
# Kind -> its name in a sentence, and its options.
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
    path: Annotated[Path, argument("PATH", "An audit's folder, a pack, a proof, a protocol file or a signature.")],
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
        option("--protocol-key PUB", "The key of the protocol's signer, if it is another one.", panel=opt.PROOFS),
    ] = None,
    root: Annotated[
        str | None,
        option("--root DIGEST", "For a proof: the audit's root digest, from a trusted source.", panel=opt.PROOFS),
    ] = None,
    signature: Annotated[
        Path | None,
        option("--signature FILE", "For a proof: the audit's signature.dsse.json, with a root.", panel=opt.PROOFS),
    ] = None,
    audit: Annotated[
        Path | None,
        option("--audit DIR", "For a pack without certificates: the audit's folder.", panel=opt.PROOFS),
    ] = None,
    rows: opt.RowRange = None,
    csv: opt.CsvOptions,
    loading: opt.LoadingOptions,
) -> None:
    """Check an audit, a pack, a proof, a protocol or a signature.

    The result lists each check, and what was not checked. With --model and --data an audit's claims are recomputed,
    with --train the fit of its protocol is checked, with --public-key the signature. A protocol is checked against its
    model and rows. Packs and proofs need neither.

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
    noun, options = KINDS[kind]
    refuse_beside(context, f"has no effect on {noun}", [name for name in OPTIONS if name not in options])
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
        outcome = recompute(path, model, data, VerifyInputs(target, columns, rows, train, sample, csv, loading))
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
    """Return the kind of a file or folder: audit, pack, proof, protocol or signature."""
    from fragility.audits.folder import check_is_audit
    from fragility.packing.archive import PACK_FILE, SUFFIX

    if path.is_dir():
        if (path / PACK_FILE).exists():
            return "pack"
        check_is_audit(path)  # anything else is an error (exit code 2), not a false claim (1)
        return "audit"
    if path.suffix.lower() == SUFFIX:
        return "pack"
    try:
        document = parse_json(read_bounded(path, JSON_LIMIT).decode("utf-8"))
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be verified; expected {EXPECTED}") from error
    form = document.get("format") if isinstance(document, dict) else None
    kind = re.match(r"fragility-(proof|protocol)/", form) if isinstance(form, str) else None
    if kind is not None:
        return kind[1]
    if isinstance(document, dict) and "payloadType" in document:
        return "signature"
    raise DataError(f"{path} cannot be verified; expected {EXPECTED}")


EXPECTED = "an audit's folder, a pack (folder or .zip), a proof, a protocol file or a signature"


@dataclass(frozen=True)
class VerifyInputs:
    """The options for reading the rows and the model."""

    target: str | None
    columns: opt.ColumnOptions
    rows: str | None
    train: Path | None
    sample: int | None
    csv: opt.CsvOptions
    loading: opt.LoadingOptions


def _recompute_audit(folder: Path, model: str, data: str, inputs: VerifyInputs) -> Any:
    """Recompute the claims of an audit from the model and the rows."""
    if inputs.columns.drop or inputs.columns.ignore_extra:
        raise DataError("the audit's protocol declares its fields, so other columns are ignored; leave out --drop")
    form, id_column = inputs.csv.form(data), inputs.columns.id_column
    loaded = inputs.loading.load(model)
    source = open_data(data, form, target=inputs.target, id_column=id_column, rows=inputs.rows)
    try:
        protocol = load_protocol(folder)
    except FragilityError:
        protocol = None  # verify reports why it cannot be read
    table_columns = Columns(
        inputs.target, id_column, fields=field_names(loaded, protocol)
    )  # refuses fields of the model
    note_unlabelled(inputs.target in source.column_names, inputs.target, data)
    source = replace(source, fields=() if protocol is None else protocol.fields)
    training = (
        None if inputs.train is None else read_training(inputs.train, table_columns, inputs.csv.form(inputs.train))
    )
    return fg.verify(folder, loaded, source, sample=inputs.sample, train=training)


def _recompute_protocol(path: Path, model: str, data: str, inputs: VerifyInputs) -> Any:
    """Check that a protocol matches the model and the rows and, given training rows, that it was fitted on them."""
    from fragility.verification.verifying import verify_protocol

    if inputs.sample is not None:
        raise DataError("--sample is for the claims of an audit; select fewer rows with --rows")
    form = inputs.csv.form(data, inputs.train)
    loaded, protocol = inputs.loading.load(model), load_protocol(path)
    table_columns = inputs.columns.declare(field_names(loaded, protocol), inputs.target)
    table = read_rows(data, table_columns, rows=inputs.rows, form=form)
    training = None if inputs.train is None else read_training(inputs.train, table_columns, form)
    table_columns.check_dropped()
    note_unlabelled(table.labels is not None, inputs.target, data)
    return verify_protocol(protocol, loaded, table.X, ids=table.ids, train=training)


def _check_signatures(path: Path, public_key: Path, protocol_key: Path | None) -> tuple[Any, ...]:
    from fragility.trust.signing import SIGNATURE_FILE, signature_checks

    if path.is_dir():
        return tuple(signature_checks(path, public_key, path / SIGNATURE_FILE, protocol_key))
    return fg.verify_signature(path, public_key).checks


def _verify_signature(path: Path, public_key: Path | None, protocol_key: Path | None) -> Any:
    """Check a signature together with the audit, pack or protocol file beside it."""
    from fragility.trust.signing import SIGNATURE_FILE, SIGNATURE_SUFFIX

    if public_key is None:
        raise VerificationError("a signature is checked with the public key of its signer; name it with --public-key")
    signed = path.parent if path.name == SIGNATURE_FILE else path.with_name(path.name.removesuffix(SIGNATURE_SUFFIX))
    if signed == path or not signed.exists():
        raise DataError(
            f"the file that {path} signs is not beside it; name the audit, the pack or the protocol instead"
        )
    kind = find_kind(signed)
    if kind != "audit" and protocol_key is not None:
        raise DataError(f"--protocol-key has no effect on the signature of {KINDS[kind][0]}; leave it out")
    if kind == "pack":
        return fg.verify_pack(signed, public_key=public_key)
    return fg.verify_signature(signed, public_key, signature=path, protocol_key=protocol_key)


def _check_keys_suffice(model: str | None, data: str | None, public_key: Path | None) -> None:
    """Refuse to verify with neither a key nor both model and rows, because nothing would be checked."""
    if model is not None or data is not None or public_key is None:
        lacking = "--model MODEL" if model is None else "--data DATA"
        raise VerificationError(
            f"{lacking} is missing: claims are recomputed with --model and --data; --public-key alone says who signed"
        )
