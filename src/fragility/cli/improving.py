"""`fragility reliability` and `harden`: rank fields by the decisions they cost, and train a less fragile model."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

import fragility as fg
import fragility.cli.options as opt
from fragility.base.errors import DataError
from fragility.base.files import MODEL
from fragility.cli.options import (
    find_log,
    is_given,
    list_options,
    load_inputs,
    load_protocol,
    option,
    read_outages,
    read_rates,
    refuse_declared,
    refuse_without,
    split_names,
)
from fragility.cli.outputs import plan_files, plan_results, save_result
from fragility.cli.tables import AuditRows, field_names, note_unlabelled, read_rows, require_labels
from fragility.cli.terminal import note, out, say
from fragility.pages.results import TABLE_SUFFIXES

if TYPE_CHECKING:
    from fragility.analysis.hardening.classifier import RateChoice

FORMS = (".json", ".txt", *TABLE_SUFFIXES, *opt.PICTURES)  # of failure probabilities
SUBSETS = 4096  # quasi-random subsets per row, if a failure probability is not exact
VALIDATION_SHARE = 0.2
MOST_TRAINING_ROWS = 2000  # to compare models on, if no test rows are given


def reliability(
    *,
    context: typer.Context,
    protocol: opt.ProtocolArgument,
    model: Annotated[str, opt.MODEL],
    data: Annotated[str, opt.DATA],
    rates: Annotated[str, opt.RATES],
    target: opt.Target = None,
    columns: opt.ColumnOptions,
    top: opt.Top = 10,
    out_files: Annotated[list[Path] | None, opt.results(*FORMS)] = None,
    observations: Annotated[
        int | None,
        option(
            "--observations N",
            "Assume that fields fail independently, as often as the log of outages records in N observations.",
            min=1,
            panel=opt.RUNNING,
        ),
    ] = None,
    markers: opt.Markers = None,
    draws: opt.Draws = None,
    seed: opt.Seed = 0,
    rows: opt.RowRange = None,
    engine: opt.Engine = "auto",
    csv: opt.CsvOptions,
    loading: opt.LoadingOptions,
) -> None:
    """Estimate how many decisions outages cost, and which field to make reliable first.

    Exact for tree ensembles and linear models, and for every model with a log of outages.

    [bold]Examples[/bold]

      fragility reliability audit/ --model model.skops --data test.parquet --target class --rates 0.05

      fragility reliability audit/ --model model.skops --data test.parquet --rates rates.json --out fields.png

      fragility reliability audit/ --model model.skops --data test.parquet --rates outages.csv --out lost.json
    """
    log = find_log(rates)
    if log is None:
        refuse_without("a log of outages in --rates", context, "markers", "observations")
    plan_results(out_files, FORMS, {"--model": model, "--data": data, "--rates": log})
    form = csv.form(data, log)
    declared = read_rates(rates, log, markers, observations, form)
    loaded, pi, table = load_inputs(model, protocol, data, form, target, columns, loading, rows)
    draws = draws or SUBSETS
    result = fg.assess_reliability(loaded, table.X, pi, declared, ids=table.ids, engine=engine, draws=draws, seed=seed)
    text = result.to_text(top)
    say(text)
    save_result(result, out_files, text)


def harden(
    *,
    context: typer.Context,
    model: opt.ModelArgument,
    train: Annotated[Path, opt.TRAIN],
    target: Annotated[str, opt.TARGET],
    out_file: Annotated[Path, option("--out MODEL2", "Write the hardened model to this file (.skops, .joblib).")],
    test: Annotated[Path | None, option("--test TEST", "Rows neither model has seen, to compare them on.")] = None,
    trust: opt.Trust = False,
    rate: Annotated[
        float | None,
        option(
            "--rate R",
            "How often a group is lost in a copy of a row. (default 0.2; with --outages 1, one event per copy)",
            min=0.0,
            max=1.0,
        ),
    ] = None,
    max_loss: Annotated[
        float | None,
        option(
            "--max-loss LOSS",
            "Choose the largest rate from 0.05 to 0.4 that lowers --metric by at most LOSS on a fifth of --train; of "
            "boosted trees also the number of rounds.",
            min=0.0,
        ),
    ] = None,
    failure_modes: Annotated[str, opt.FAILURE_MODES] = "lost",
    outages: opt.Outages = None,
    protocol: opt.SomeProtocol = None,
    metric: Annotated[
        str, option("--metric NAME", "The scikit-learn scorer for --max-loss.", panel=opt.COPIES)
    ] = "roc_auc",
    copies: Annotated[int, option("--copies N", "Degraded copies of each row.", min=1, panel=opt.COPIES)] = 1,
    kind: Annotated[
        str, option("--kind NAME", "How copies are degraded: mask, attenuate or outages.", panel=opt.COPIES)
    ] = "mask",
    copy_weight: Annotated[
        float | None,
        option(
            "--copy-weight SHARE",
            "Share of a row's weight that goes to its copies. (default half; with M modes M / (1 + M))",
            min=0.0,
            max=1.0,
            panel=opt.COPIES,
        ),
    ] = None,
    markers: opt.Markers = None,
    evidence: opt.EvidenceOptions,
    seed: opt.Seed = 0,
    engine: opt.Engine = "auto",
    columns: opt.ColumnOptions,
    csv: opt.CsvOptions,
) -> None:
    """Train a model again so that it relies on more of its evidence.

    The training rows are augmented by copies in which groups of evidence are lost (or wrong, with --failure-modes); a
    row and its copies share its weight. The result is a model of the same kind, deployed and audited as before; both
    models are compared on --test.

    [bold]Examples[/bold]

      fragility harden model.skops --train train.parquet --target class --test test.parquet --out hardened.skops

      fragility harden model.skops --train train.parquet --target class --max-loss 0.002 --out hardened.skops

      fragility harden model.skops --train train.parquet --target class --outages outages.csv --out hardened.skops
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
    table_columns = columns.declare(field_names(loaded, finished), target)
    rows = read_rows(train, table_columns, form=form, ids=False)
    labels = require_labels(rows, target, train)
    tested = None
    if test is not None:
        tested = read_rows(test, table_columns, form=form)
        note_unlabelled(tested.labels is not None, target, test)
    table_columns.check_dropped()
    declared = finished or fg.Protocol.fit(loaded, rows.X, **evidence.settings())
    log = None if outages is None else read_outages(outages, markers, form)
    modes = tuple(split_names(failure_modes))
    how: dict[str, Any] = {"copies": copies, "kind": kind if log is None else "outages", "outages": log, "seed": seed}
    how |= {"modes": modes, "copy_weight": copy_weight}
    if max_loss is not None:
        choice = _choose_rate(loaded, rows, max_loss, metric, protocol=declared, engine=engine, **how)
        rate = choice.rate
        how |= {} if choice.rounds == choice.outcomes[0].rounds else {"rounds": choice.rounds}
    started = time.perf_counter()
    hardened = fg.harden(loaded, rows.X, labels, protocol=declared, rate=rate, **how)
    seconds = time.perf_counter() - started
    _print_effect(loaded, hardened, declared, rows, tested or _draw_training_rows(rows, seed), engine, modes)
    count = len(rows.X)
    out().print(f"trained on {count} rows and {count * max(copies, len(modes))} degraded copies in {seconds:.1f} s")
    save_model(hardened, out_file)
    note(f"written to {out_file}")
    note(f"next: fragility audit {out_file} DATA --train {train} --target {target} --out audit-hardened/")


def _check_options(context: typer.Context, kind: str, has_log: bool) -> None:
    if is_given(context, "protocol"):
        refuse_declared(context, "--protocol", list_options(opt.EvidenceOptions))
    if is_given(context, "max_loss") and is_given(context, "rate"):
        raise DataError("--max-loss chooses the rate; leave out --rate or leave out --max-loss")
    if not is_given(context, "max_loss"):
        refuse_without("--max-loss", context, "metric")
    if kind == "outages" and not has_log:
        raise DataError("--kind outages needs recorded outages; name them with --outages")
    if has_log and is_given(context, "kind") and kind != "outages":
        raise DataError(f"--outages trains against recorded outages, but --kind is {kind}; leave out one of them")
    if not has_log:
        refuse_without("--outages", context, "markers")


def _choose_rate(model: fg.Model, rows: AuditRows, max_loss: float, metric: str, **how: Any) -> RateChoice:
    """Return the largest rate that keeps to the loss on held-out training rows; print the effect of each rate."""
    from sklearn.model_selection import train_test_split

    try:
        X, X_val, y, y_val = train_test_split(
            rows.X, rows.labels, test_size=VALIDATION_SHARE, stratify=rows.labels, random_state=how["seed"]
        )
    except ValueError as error:
        raise DataError(f"--train cannot be split for --max-loss: {error}") from error
    choice = fg.choose_rate(model, X, y, X_val, y_val, tolerance=max_loss, metric=metric, **how)
    out().print(f"Rates, trained on {len(X)} rows and judged on {len(X_val)} others of --train:")
    out().print(escape(choice.to_text()) + "\n")
    if choice.rate == 0.0:
        raise DataError(
            f"every rate lowers {metric} by more than {max_loss:g} on the validation rows, so nothing was written; "
            "raise --max-loss, or name a --rate"
        )
    return choice


def _draw_training_rows(rows: AuditRows, seed: int) -> AuditRows:
    index = rows.X.sample(min(len(rows.X), MOST_TRAINING_ROWS), random_state=seed).index
    note(f"compared on {len(index)} training rows, which both models have seen; name others with --test")
    assert rows.labels is not None
    return AuditRows(rows.X.loc[index], None, rows.labels.loc[index])


def _print_effect(
    model: fg.Model,
    hardened: Any,
    before: fg.Protocol,
    rows: AuditRows,
    compared: AuditRows,
    engine: str,
    modes: tuple[str, ...],
) -> None:
    """Print a comparison of both models, each under its own protocol and under the other's."""
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
