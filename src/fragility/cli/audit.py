"""`fragility audit` and `fragility verify`: make certificates, and check them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.markup import escape

from fragility import fitting, scores
from fragility.audit import audit as audit_rows
from fragility.certificates import Certificates, check_writable_folder, read_manifest, read_protocol, summarise
from fragility.cli.options import (
    Baseline,
    Classes,
    DataArgument,
    DataOption,
    Depth,
    DirArgument,
    Groups,
    Id,
    ModelArgument,
    ModelOption,
    Reading,
    RowRange,
    Space,
    Target,
    Trust,
    name_or_json,
    parse_classes,
)
from fragility.cli.tables import read_rows, read_training
from fragility.cli.terminal import EXIT_CLAIM_FAILED, note, out
from fragility.errors import FragilityError, ProtocolError
from fragility.loading import load_model
from fragility.models import Model
from fragility.protocol import Protocol
from fragility.verify import verify as verify_certificates

Train = Annotated[
    Path | None,
    typer.Option("--train", metavar="TRAIN", help="The training rows; groups and baseline are fitted on them."),
]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder to write.", show_default=False)]
ProtocolFile = Annotated[
    Path | None,
    typer.Option("--protocol", metavar="FILE", help="Use this protocol file instead of fitting one on --train."),
]
Engine = Annotated[str, typer.Option("--engine", metavar="NAME", help="auto, or the engine to insist on (blackbox).")]
Sample = Annotated[
    int | None, typer.Option("--sample", metavar="N", min=1, help="Recompute only N rows, chosen at random.")
]


def register(app: typer.Typer) -> None:
    app.command("audit")(audit)
    app.command("verify")(verify)


def audit(
    context: typer.Context,
    model: ModelArgument,
    data: DataArgument,
    out_dir: Out,
    train: Train = None,
    target: Target = None,
    id_column: Id = None,
    groups: Groups = "raw-origin",
    protocol: ProtocolFile = None,
    baseline: Baseline = "mean",
    depth: Depth = None,
    reading: Reading = "support",
    space: Space = None,
    engine: Engine = "auto",
    rows: RowRange = None,
    classes: Classes = None,
    trust: Trust = False,
) -> None:
    """Audit a model's predictions on DATA and write one certificate for each row.

    [bold]Examples[/bold]

      fragility audit model.skops test.parquet --train train.parquet --target class --out audit/

      fragility audit model.joblib test.csv --train train.csv --trust --baseline mode --out audit/

      fragility audit credit.scoring:pipeline new.parquet --protocol protocol.json --id loan_id --out audit/
    """
    check_writable_folder(out_dir)
    started = time.perf_counter()
    loaded = load_model(model, trust=trust, classes=parse_classes(classes))
    given = read_rows(data, "DATA", target=target, id_column=id_column, rows=rows)
    if protocol is not None:
        _refuse_protocol_options(context)
        declared = read_protocol(protocol)
    else:
        declared = _fit_protocol(loaded, train, target, id_column, groups, baseline, depth, reading, space)
    certs = audit_rows(loaded, given.X, declared, ids=given.ids, engine=engine)
    certs.save(out_dir)
    _print_summary(certs, out_dir, time.perf_counter() - started)


def _fit_protocol(
    model: Model, train: Path | None, target: str | None, id_column: str | None,
    groups: str, baseline: str, depth: int | None, reading: str, space: str | None,
) -> Protocol:  # fmt: skip
    if train is None:
        raise ProtocolError(
            "a protocol is fitted on training rows: name them with --train, or a finished protocol with --protocol"
        )
    return Protocol.fit(
        model,
        read_training(train, target=target, id_column=id_column),
        groups=groups,
        baseline=name_or_json(baseline, "--baseline"),
        depth=depth,
        reading=cast(scores.Reading, reading),  # the protocol checks the word and names the choices
        space=cast(fitting.Space | None, space),
    )


def _refuse_protocol_options(context: typer.Context) -> None:
    """A protocol file already declares these; silently ignoring an option would be worse than refusing it."""
    for name in ("train", "groups", "baseline", "depth", "reading", "space"):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise ProtocolError(f"--protocol already declares the {name}; leave out --{name} or leave out --protocol")


def _declared_fields(directory: Path, given: list[str]) -> list[str]:
    """Return the columns to verify with: the protocol's fields, if all are there; a label beside them is set aside.

    Where a field is lacking, or the protocol cannot be read, everything is handed on, for verify to say so.
    """
    try:
        fields = [field.name for field in read_protocol(directory).fields]
    except FragilityError:
        return given
    return fields if set(fields) <= set(given) else given


def _print_summary(certs: Certificates, folder: Path, seconds: float) -> None:
    summary = summarise(certs)
    turning = round(summary.confident * summary.confident_flips_within_two) if summary.confident else 0
    console = out()
    console.print(f"{summary.rows} certificates in {folder} ({seconds:.1f} s, engine {certs.engine})")
    console.print(
        f"{summary.confident} predictions are at least {summary.min_confidence:.0%} confident; {turning} of them turn "
        "when one or two groups of evidence are lost"
    )
    note(f"next: fragility top {folder}")


def verify(
    directory: DirArgument,
    model: ModelOption,
    data: DataOption,
    target: Target = None,
    id_column: Id = None,
    rows: RowRange = None,
    sample: Sample = None,
    classes: Classes = None,
    trust: Trust = False,
) -> None:
    """Check certificates against the model and the rows they speak of.

    The checks, in this order: format, digests, protocol and model fingerprint, input digest, recomputation.
    Exit code 0: every claim holds. 1: a claim does not hold, and which. 2: it could not be checked.

    [bold]Examples[/bold]

      fragility verify audit/ --model model.skops --data test.parquet --target class

      fragility verify audit/ --model model.skops --data test.parquet --target class --sample 100
    """
    read_manifest(directory)  # a folder that is no audit cannot be checked, which is not the same as a false claim
    loaded = load_model(model, trust=trust, classes=parse_classes(classes))
    given = read_rows(data, "DATA", target=target, id_column=id_column, rows=rows)
    X = given.X[_declared_fields(directory, list(given.X.columns))]
    verification = verify_certificates(directory, loaded, X, ids=given.ids, sample=sample)
    out().print(escape(str(verification)))
    if not verification:
        raise typer.Exit(EXIT_CLAIM_FAILED)
