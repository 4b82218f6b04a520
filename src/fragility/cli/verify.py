"""`fragility verify`: check certificates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

import fragility as fg
import fragility.cli.options as opt
from fragility.base.errors import FragilityError, VerificationError
from fragility.cli.options import option, refuse_without
from fragility.cli.outputs import plan_files
from fragility.cli.tables import Columns, field_names, note_unlabelled, open_data, read_training
from fragility.cli.terminal import EXIT_CLAIM_FAILED, note, out
from fragility.pages.results import checked_suffix, write_json

NEEDS_MODEL = (
    *("target", "train", "id_column", "rows", "sample", "separator", "encoding", "decimal"),
    *("classes", "trust", "returns"),
)


def verify(
    *,
    context: typer.Context,
    directory: opt.DirArgument,
    model: Annotated[
        str | None, option("--model MODEL", "The model that was audited, to recompute its claims.")
    ] = None,
    data: Annotated[
        str | None,
        option(
            "--data DATA",
            "The rows that were audited, to recompute their claims: a file, a folder of files, a pattern or address.",
        ),
    ] = None,
    train: Annotated[
        Path | None,
        option("--train TRAIN", "The training rows, to fit the protocol's baselines, catalogue and ranges again."),
    ] = None,
    public_key: Annotated[
        Path | None, option("--public-key PUB", "Check that whoever has this key signed the audit and protocol.")
    ] = None,
    protocol_key: Annotated[
        Path | None, option("--protocol-key PUB", "The key of the protocol's signer, if another's.")
    ] = None,
    target: opt.Target = None,
    id_column: opt.Id = None,
    rows: opt.RowRange = None,
    sample: Annotated[int | None, option("--sample N", "Recompute only N rows, chosen at random.", min=1)] = None,
    json_file: opt.JsonOut = None,
    csv: opt.CsvOptions,
    loading: opt.LoadingOptions,
) -> None:
    """Check certificates against the model and the rows they speak of, and who signed them.

    The checks, in this order: format, digests, protocol and model fingerprint, input digest, recomputation; lattice,
    modes, intervals and other baselines as far as the audit has them; with --train the fit of the protocol, with
    --public-key the signature. Without --model and --data nothing is recomputed, and the last line says so.
    Exit code 0: every claim checked holds. 1: a claim does not hold, and which. 2: it could not be checked.

    [bold]Examples[/bold]

      fragility verify audit/ --model model.skops --data test.parquet --target class

      fragility verify audit/ --model model.skops --data test.parquet --target class --sample 100

      fragility verify audit/ --public-key audit-key.pub
    """
    if json_file is not None:
        checked_suffix(json_file, (".json",))
    inputs = {"--model": model, "--data": data, "--train": train, "--public-key": public_key}
    plan_files({"--json": json_file}, inputs | {"--protocol-key": protocol_key})
    if model is None or data is None:
        if model is not None or data is not None or public_key is None:
            lacking = "--model MODEL" if model is None else "--data DATA"
            raise VerificationError(
                f"{lacking} is missing: claims are recomputed with --model and --data; --public-key alone says who "
                "signed"
            )
        refuse_without("--model and --data", context, *NEEDS_MODEL)
    if public_key is None:
        refuse_without("--public-key", context, "protocol_key")
    from fragility.audits.folder import check_is_audit, read_protocol

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
        own = Columns(target, id_column, fields=field_names(loaded, protocol))  # refuses fields of the model
        note_unlabelled(target in source.column_names, target, data)
        source = replace(source, fields=() if protocol is None else protocol.fields)
        training = None if train is None else read_training(train, own, csv.form(train))
        outcome = fg.verify(directory, loaded, source, sample=sample, train=training)
        if public_key is not None:
            from fragility.trust.signing import SIGNATURE_FILE, signature_checks

            found = signature_checks(directory, public_key, directory / SIGNATURE_FILE, protocol_key)
            outcome = replace(outcome, checks=(*outcome.checks, *found))
    out().print(escape(str(outcome)))
    if json_file is not None:
        write_json(json_file, outcome.to_dict())
        note(f"written to {json_file}")
    if not outcome:
        raise typer.Exit(EXIT_CLAIM_FAILED)
