"""`fragility verify`: check certificates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

import fragility as fg
import fragility.cli.options as opt
from fragility.cli.options import is_given
from fragility.cli.tables import Columns, field_names, note_unlabelled, open_data
from fragility.cli.terminal import EXIT_CLAIM_FAILED, out
from fragility.errors import FragilityError, VerificationError

CheckedModel = Annotated[
    str | None, typer.Option("--model", metavar="MODEL", help="The model that was audited, to recompute its claims.")
]
CheckedData = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="DATA",
        help="The rows that were audited, to recompute their claims: a file, a folder of files, a pattern or address.",
    ),
]
PublicKey = Annotated[
    Path | None,
    typer.Option("--public-key", metavar="PUB", help="Check that whoever has this key signed the audit and protocol."),
]
ProtocolKey = Annotated[
    Path | None, typer.Option("--protocol-key", metavar="PUB", help="The key of the protocol's signer, if another's.")
]
Sample = Annotated[
    int | None, typer.Option("--sample", metavar="N", min=1, help="Recompute only N rows, chosen at random.")
]

NEEDS_MODEL = ("target", "id_column", "rows", "sample", "separator", "encoding", "decimal", "classes", "trust")


def verify(
    *,
    context: typer.Context,
    directory: opt.DirArgument,
    model: CheckedModel = None,
    data: CheckedData = None,
    public_key: PublicKey = None,
    protocol_key: ProtocolKey = None,
    target: opt.Target = None,
    id_column: opt.Id = None,
    rows: opt.RowRange = None,
    sample: Sample = None,
    csv: opt.CsvOptions,
    loading: opt.LoadingOptions,
) -> None:
    """Check certificates against the model and the rows they speak of, and who signed them.

    The checks, in this order: format, digests, protocol and model fingerprint, input digest, recomputation, lattice;
    with --public-key also the signature. Without --model and --data nothing is recomputed, and the last line says so.
    Exit code 0: every claim checked holds. 1: a claim does not hold, and which. 2: it could not be checked.

    [bold]Examples[/bold]

      fragility verify audit/ --model model.skops --data test.parquet --target class

      fragility verify audit/ --model model.skops --data test.parquet --target class --sample 100

      fragility verify audit/ --public-key audit-key.pub
    """
    if model is None or data is None:
        _refuse_without_model(context, model, data, public_key)
    from fragility.certificates.folder import check_is_audit, read_protocol

    check_is_audit(directory)  # a folder that is no audit cannot be checked, which is not the same as a false claim
    if model is None or data is None:
        assert public_key is not None
        outcome: Any = fg.verify_signature(directory, public_key, protocol_key=protocol_key)
    else:
        form = csv.form(data)
        loaded = loading.load(model)
        source = open_data(data, form, target=target, id_column=id_column, rows=rows)
        try:
            protocol = read_protocol(directory)
        except FragilityError:
            protocol = None  # verify says why it cannot be read
        Columns.declare(field_names(loaded, protocol), target, id_column)
        note_unlabelled(target in source.column_names, target, data)
        source = replace(source, fields=() if protocol is None else protocol.fields)
        verification = fg.verify(directory, loaded, source, sample=sample)
        if public_key is None and protocol_key is not None:
            raise VerificationError("--protocol-key goes with --public-key; give both, or neither")
        if public_key is not None:
            from fragility.trust.signing import SIGNATURE_FILE, signature_checks

            found = signature_checks(directory, public_key, directory / SIGNATURE_FILE, protocol_key)
            verification = replace(verification, checks=(*verification.checks, *found))
        outcome = verification
    out().print(escape(str(outcome)))
    if not outcome:
        raise typer.Exit(EXIT_CLAIM_FAILED)


def _refuse_without_model(context: typer.Context, model: str | None, data: str | None, public_key: Path | None) -> None:
    """Refuse what recomputing needs where nothing is recomputed, and to check nothing at all."""
    lacking = "--model MODEL" if model is None else "--data DATA"
    if model is not None or data is not None or public_key is None:
        raise VerificationError(
            f"{lacking} is missing: claims are recomputed with --model and --data; --public-key alone says who signed"
        )
    for name in NEEDS_MODEL:
        if is_given(context, name):
            option = {"id_column": "--id"}.get(name, f"--{name}")
            raise VerificationError(f"{option} has no effect without --model and --data; leave it out or give both")
