"""`fragility harden`: train a model again so that its predictions rest on more of their evidence."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

import fragility as fg
import fragility.cli.options as opt
from fragility.base.errors import DataError
from fragility.base.files import MODEL
from fragility.cli.audit import ProtocolFile
from fragility.cli.evaluate import Markers, read_outages
from fragility.cli.options import is_given, list_options, load_protocol, option, refuse_declared, refuse_without
from fragility.cli.outputs import plan_files
from fragility.cli.tables import AuditRows, field_names, note_unlabelled, read_rows, require_labels
from fragility.cli.terminal import note, out

VALIDATION_SHARE = 0.2
MOST_TRAINING_ROWS = 2000  # compared on where no other rows are given


def harden(
    *,
    context: typer.Context,
    model: opt.ModelArgument,
    train: Annotated[Path, option("--train TRAIN", "The training rows, with their labels.")],
    target: opt.LabelColumn,
    out_file: Annotated[Path, option("--out MODEL2", "Write the hardened model to this file (.skops, .joblib).")],
    rate: Annotated[
        float | None,
        option(
            "--rate",
            "How often a group is lost in a copy of a row. (default 0.2; with --outages 1: an event per copy)",
            min=0.0,
            max=1.0,
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        option(
            "--tolerance",
            "Choose the rate instead: the largest of 0.05 to 0.4 that loses at most this much of --metric on a "
            "fifth of TRAIN.",
            min=0.0,
        ),
    ] = None,
    metric: Annotated[str, option("--metric NAME", "What --tolerance speaks of: a scikit-learn scorer.")] = "roc_auc",
    copies: Annotated[int, option("--copies", "Degraded copies of each row.", min=1)] = 1,
    kind: Annotated[str, option("--kind NAME", "What happens to a copy: mask, attenuate or outages.")] = "mask",
    modes: Annotated[
        str, option("--modes A,B", "What evidence turns into in the copies: lost, wrong, noisy, or several of them.")
    ] = "lost",
    copy_weight: Annotated[
        float | None,
        option(
            "--copy-weight",
            "Share of a row's weight that its copies carry. (default half; with M modes M / (1 + M))",
            min=0.0,
            max=1.0,
        ),
    ] = None,
    outages: Annotated[
        Path | None,
        option("--outages FILE", "Recorded outages to train against: a table of event and field, or booleans."),
    ] = None,
    markers: Markers = None,
    test: Annotated[Path | None, option("--test TEST", "Rows neither model has seen, to compare them on.")] = None,
    protocol: ProtocolFile = None,
    evidence: opt.EvidenceOptions,
    seed: Annotated[int, option("--seed", "Seed of the copies, and of the split for --tolerance.", min=0)] = 0,
    engine: opt.Engine = "auto",
    columns: opt.ColumnOptions,
    csv: opt.CsvOptions,
    trust: opt.Trust = False,
) -> None:
    """Train a model again so that its predictions rest on more of their evidence, and show what that did.

    It learns from the rows and from copies of them in which groups of evidence are lost (or wrong, with --modes),
    which share their weight. What comes out is a model of the same kind, deployed and audited as before.

    [bold]Examples[/bold]

      fragility harden model.skops --train train.parquet --target class --test test.parquet --out hardened.skops

      fragility harden model.skops --train train.parquet --target class --tolerance 0.002 --out hardened.skops

      fragility harden model.skops --train train.parquet --target class --outages outages.csv --out hardened.skops

      fragility harden model.skops --train train.parquet --target class --modes lost,wrong --out hardened.skops
    """
    from fragility.analysis.hardening.training import check_hardenable
    from fragility.models.loading import check_storable, save_model

    _check_options(context, kind, outages is not None)
    inputs: dict[str, str | Path | None] = {"MODEL": model, "--train": train, "--test": test, "--outages": outages}
    plan_files({"--out": out_file}, inputs, own=MODEL)
    form = csv.form(train, test, outages)
    loaded = fg.load_model(model, trust=trust)
    check_storable(check_hardenable(loaded), out_file)
    finished = None if protocol is None else load_protocol(protocol)
    known = columns.declare(field_names(loaded, finished), target)
    rows = read_rows(train, known, form=form, ids=False)
    labels = require_labels(rows, target, train)
    tested = None
    if test is not None:
        tested = read_rows(test, known, form=form)
        note_unlabelled(tested.labels is not None, target, test)
    known.check_dropped()
    declared = finished or fg.Protocol.fit(loaded, rows.X, **evidence.settings())
    log = None if outages is None else read_outages(outages, markers, form)
    named = tuple(name.strip() for name in modes.split(","))
    how: dict[str, Any] = {"copies": copies, "kind": kind if log is None else "outages", "outages": log, "seed": seed}
    how |= {"modes": named, "copy_weight": copy_weight}
    if tolerance is not None:
        rate = _choose_rate(loaded, rows, tolerance, metric, protocol=declared, engine=engine, **how)
    started = time.perf_counter()
    hardened = fg.harden(loaded, rows.X, labels, protocol=declared, rate=rate, **how)
    seconds = time.perf_counter() - started
    _print_effect(loaded, hardened, declared, rows, tested or _draw_training_rows(rows, seed), engine, named)
    count = len(rows.X)
    out().print(f"trained on {count} rows and {count * max(copies, len(named))} degraded copies in {seconds:.1f} s")
    save_model(hardened, out_file)
    note(f"written to {out_file}")
    note(f"next: fragility audit {out_file} DATA --train {train} --target {target} --out audit-hardened/")


def _check_options(context: typer.Context, kind: str, has_log: bool) -> None:
    if is_given(context, "protocol"):
        refuse_declared(context, "--protocol", list_options(opt.EvidenceOptions))
    if is_given(context, "tolerance") and is_given(context, "rate"):
        raise DataError("--tolerance chooses the rate; leave out --rate or leave out --tolerance")
    if not is_given(context, "tolerance"):
        refuse_without("--tolerance", context, "metric")
    if kind == "outages" and not has_log:
        raise DataError("--kind outages needs recorded outages; name them with --outages")
    if has_log and is_given(context, "kind") and kind != "outages":
        raise DataError(f"--outages trains against recorded outages, and --kind says {kind}; leave out one of them")
    if not has_log:
        refuse_without("--outages", context, "markers")


def _choose_rate(model: fg.Model, rows: AuditRows, tolerance: float, metric: str, **how: Any) -> float:
    """Return the largest rate that a part of the training rows, set aside, allows; print what each rate does."""
    from sklearn.model_selection import train_test_split

    try:
        X, X_val, y, y_val = train_test_split(
            rows.X, rows.labels, test_size=VALIDATION_SHARE, stratify=rows.labels, random_state=how["seed"]
        )
    except ValueError as error:
        raise DataError(f"--train cannot be split for --tolerance: {error}") from error
    choice = fg.choose_rate(model, X, y, X_val, y_val, tolerance=tolerance, metric=metric, **how)
    out().print(f"Rates, trained on {len(X)} rows and judged on {len(X_val)} others of --train:")
    out().print(escape(choice.to_text()) + "\n")
    if choice.rate == 0.0:
        raise DataError(
            f"no rate loses at most {tolerance:g} of {metric} on the validation rows, so nothing was written; "
            "raise --tolerance, or name a --rate"
        )
    return choice.rate


def _draw_training_rows(rows: AuditRows, seed: int) -> AuditRows:
    chosen = rows.X.sample(min(len(rows.X), MOST_TRAINING_ROWS), random_state=seed).index
    note(f"compared on {len(chosen)} training rows, which both models have seen; name others with --test")
    assert rows.labels is not None
    return AuditRows(rows.X.loc[chosen], None, rows.labels.loc[chosen])


def _print_effect(
    model: fg.Model,
    hardened: Any,
    before: fg.Protocol,
    rows: AuditRows,
    compared: AuditRows,
    engine: str,
    modes: tuple[str, ...],
) -> None:
    """Print both models side by side, each under its own protocol and under the other's."""
    from fragility.analysis.hardening.assessment import HardeningEffect, assess_model, assess_transfer
    from fragility.analysis.hardening.training import refit_protocol

    def assess(model: Any, pi: fg.Protocol) -> Any:
        labels = None if compared.labels is None else compared.labels.to_numpy()
        return assess_model(model, compared.X, pi, labels, ids=compared.ids, engine=engine, progress=None)

    after = refit_protocol(hardened, rows.X, before)
    transfer = assess_transfer(
        model, hardened, compared.X, rows.X, (before, after), modes=modes, ids=compared.ids, engine=engine
    )
    effect = HardeningEffect(assess(model, before), assess(hardened, after), further=transfer.lines())
    out().print(f"{model.kind}, {effect.before.rows} rows:")
    out().print(escape(effect.to_text()))
    out().print(escape(transfer.sentence()))
