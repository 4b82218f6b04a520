"""`fragility evaluate`, `evaluate labels` and `evaluate missing`: rankings, stress labels, and missing evidence."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

import fragility as fg
import fragility.cli.options as opt
from fragility.base.errors import DataError
from fragility.base.files import read_json
from fragility.cli.options import (
    is_given,
    load_inputs,
    load_protocol,
    option,
    read_outages,
    refuse_without,
    split_names,
)
from fragility.cli.outputs import plan_results, save_result
from fragility.cli.tables import Columns, field_names, note_unlabelled, read_rows, take_rows
from fragility.cli.terminal import err, say
from fragility.pages.results import TABLE_SUFFIXES

if TYPE_CHECKING:
    from fragility.tables.formats import CsvFormat

MOST_TRIED = 1024  # values of several missing fields
DRAWS = 16  # under stress, per row and stressor


@dataclass(frozen=True)
class StressOptions:
    """The stress of the rows."""

    outages: opt.Outages = None
    markers: opt.Markers = None
    stressors: Annotated[
        str, option("--stressors A,B", "How the rows are stressed: mask, dropout, noise, donor, or several of them.")
    ] = "mask,dropout,noise"
    donors: Annotated[
        Path | None,
        option(
            "--donors TRAIN",
            "Training rows, whose values the stressor donor inserts into a row.",
            panel=opt.STRESSING,
        ),
    ] = None
    severity: Annotated[
        float,
        option(
            "--severity S", "Rate of mask, dropout and donor, extent of noise.", min=0.0, max=1.0, panel=opt.STRESSING
        ),
    ] = 0.3
    draws: opt.Draws = None
    rule: Annotated[
        str,
        option("--rule NAME", "expected (mean margin over draws) or any (a single draw).", panel=opt.STRESSING),
    ] = "expected"
    tau_confidence: Annotated[
        float | None,
        option(
            "--tau-confidence C",
            "Confidence from which a prediction counts as confident. (default: the protocol's)",
            min=0.0,
            max=1.0,
            panel=opt.STRESSING,
        ),
    ] = None
    tau_collapse: Annotated[
        float,
        option(
            "--tau-collapse K",
            "Share of its margin a prediction must lose to be brittle.",
            min=0.0,
            panel=opt.STRESSING,
        ),
    ] = 0.50
    seed: opt.Seed = 0

    def declare(self, context: typer.Context, form: CsvFormat) -> fg.Stress:
        """Return the stress; refuse options that would have no effect beside others."""
        if self.outages is None:
            refuse_without("--outages", context, "markers")
            stressors = self._declare_random()
        else:
            for name, meaning in (("severity", "the extent"), ("stressors", "the kind"), ("donors", "a part")):
                if is_given(context, name):
                    raise DataError(
                        f"--{name} is {meaning} of random stress, which --outages replaces; leave out one of the two"
                    )
            stressors = (read_outages(self.outages, self.markers, form),)
        return fg.Stress(stressors, self.draws or DRAWS, self.rule, self.tau_confidence, self.tau_collapse, self.seed)

    def _declare_random(self) -> tuple[Any, ...]:
        from fragility.questions.stress.stressors import Donor, Dropout, Mask, Noise

        kinds: dict[str, Any] = {kind.kind: kind for kind in (Mask, Dropout, Noise, Donor)}
        names = split_names(self.stressors)
        if not names or (unknown := [name for name in names if name not in kinds]):
            got = repr(unknown[0]) if names else "none"
            raise DataError(f"--stressors must be among {', '.join(kinds)}, with commas between, got {got}")
        if ("donor" in names) != (self.donors is not None):
            raise DataError(
                "--stressors donor needs training rows; name them with --donors"
                if self.donors is None
                else "--donors are rows for the stressor donor, but --stressors does not name it; add it, or leave out "
                "--donors"
            )
        return tuple(kinds[name](self.severity) for name in names)

    @property
    def inputs(self) -> dict[str, Path | None]:
        """The input files by option."""
        return {"--outages": self.outages, "--donors": self.donors}

    def read_donors(self, known: Columns, form: CsvFormat) -> Any:
        """Return the donor rows; None if no stressor needs them."""
        return None if self.donors is None else read_rows(self.donors, known, form=form, ids=False).X


def evaluate(
    *,
    context: typer.Context,
    directory: opt.DirArgument,
    model: Annotated[str, opt.MODEL],
    data: Annotated[str, opt.DATA],
    target: opt.Target = None,
    columns: opt.ColumnOptions,
    validation: Annotated[
        Path | None,
        option("--validation FILE", "Rows on which each baseline's direction is chosen.", panel=opt.RUNNING),
    ] = None,
    score: opt.Score = "exposure",
    failure_modes: Annotated[str | None, opt.FAILURE_MODES] = None,
    out_files: Annotated[list[Path] | None, opt.results(".json", ".txt", *TABLE_SUFFIXES)] = None,
    shap: Annotated[
        int,
        option("--shap N", "Explain N rows for the group-SHAP baseline; 0 leaves it out.", min=0, panel=opt.RUNNING),
    ] = 0,
    random_orders: Annotated[
        int,
        option("--random-orders N", "Random group orders to average; 0 leaves them out.", min=0, panel=opt.RUNNING),
    ] = 5,
    stressing: StressOptions,
    engine: opt.Engine = "auto",
    csv: opt.CsvOptions,
    loading: opt.LoadingOptions,
) -> None:
    """Evaluate how well exposure ranks the predictions that break under stress.

    It is compared with the model's confidence and other baselines. The stress is held out: no certificate uses it.
    --score fds evaluates the paper's score instead, and --failure-modes are compared too.

    [bold]Examples[/bold]

      fragility evaluate audit/ --model model.skops --data test.parquet --target class

      fragility evaluate audit/ --model model.skops --data test.parquet --outages outages.csv --out evaluation.json

      fragility evaluate audit/ --model model.skops --data test.parquet --failure-modes noisy --score noisy
    """
    if validation is None:
        refuse_without("--validation", context, "engine")
    inputs = {"--model": model, "--data": data, "--validation": validation, **stressing.inputs}
    plan_results(out_files, (".json", ".txt", *TABLE_SUFFIXES), inputs)
    form = csv.form(data, validation, stressing.outages, stressing.donors)
    declared = stressing.declare(context, form)
    audit = fg.open_audit(directory)
    loaded = loading.load(model)
    table_columns = columns.declare(field_names(loaded, audit.protocol), target)
    table = read_rows(data, table_columns, form=form)
    certs = take_rows(audit, table.ids)
    held_out = None
    if validation is not None:
        validation_rows = read_rows(validation, table_columns, form=form, ids=False)
        held_out = validation_rows.X, validation_rows.labels
    donors = stressing.read_donors(table_columns, form)
    table_columns.check_dropped()
    note_unlabelled(table.labels is not None, target, data)
    with _show_status("evaluating"):
        result = fg.evaluate(
            certs,
            loaded,
            table.X,
            table.labels,
            validation=held_out,
            stress=declared,
            baselines=fg.Baselines(random_orders, shap),
            by=score,
            modes=() if failure_modes is None else split_names(failure_modes),
            donors=donors,
            ids=table.ids,
            engine=engine,
            seed=stressing.seed,
        )
    text = result.to_text()
    say(text)
    save_result(result, out_files, text)


def labels(
    *,
    context: typer.Context,
    protocol: opt.ProtocolArgument,
    model: Annotated[str, opt.MODEL],
    data: Annotated[str, opt.DATA],
    out_files: Annotated[list[Path] | None, opt.results(*TABLE_SUFFIXES)] = None,
    stressing: StressOptions,
    target: opt.Target = None,
    columns: opt.ColumnOptions,
    rows: opt.RowRange = None,
    csv: opt.CsvOptions,
    loading: opt.LoadingOptions,
) -> None:
    """Label the confident predictions that break under stress.

    The stress is random loss of evidence, or your own recorded outages. These labels are held out: no certificate and
    no score uses them. Other commands read them with --stress.

    [bold]Examples[/bold]

      fragility evaluate labels audit/ --model model.skops --data test.parquet --target class --out stress.parquet

      fragility evaluate labels audit/ --model model.skops --data test.parquet --outages outages.csv

      fragility evaluate labels audit/ --model model.skops --data test.parquet --stressors donor --donors train.parquet
    """
    from fragility.analysis.ranking.comparison import label_noise_ceiling
    from fragility.analysis.ranking.metrics import DEFINED

    plan_results(out_files, TABLE_SUFFIXES, {"--model": model, "--data": data, **stressing.inputs})
    form = csv.form(data, stressing.outages, stressing.donors)
    declared = stressing.declare(context, form)
    loaded, pi, table = load_inputs(model, protocol, data, form, target, columns, loading, rows)
    donors = stressing.read_donors(columns.declare(field_names(loaded, pi), target), form)
    with _show_status("stressing"):
        brittle = fg.label_brittle(loaded, table.X, pi, declared, ids=table.ids, donors=donors)
        independent = fg.label_brittle(loaded, table.X, pi, declared.independent(), ids=table.ids, donors=donors)
    for name, count in brittle.counts().items():
        say(f"{count:8d}  {name}")
    ceiling = label_noise_ceiling(brittle, independent)
    ceiling_text = f"{ceiling.auroc:.3f}" if ceiling.state == DEFINED else ceiling.state
    say(f"Label-noise ceiling (AUROC of independent draws): {ceiling_text}")
    save_result(brittle, out_files)


def _show_status(what: str) -> AbstractContextManager[Any]:
    console = err()
    return console.status(what) if console.is_terminal else nullcontext()


def missing(
    *,
    context: typer.Context,
    model: opt.ModelArgument,
    data: opt.DataArgument,
    protocol: opt.SomeProtocol = None,
    train: opt.SomeTrain = None,
    sets: Annotated[
        Path | None,
        option(
            "--sets FILE",
            "Which fields to hide together: a JSON list of lists of fields, or a log of outages. (default: each field)",
        ),
    ] = None,
    together: Annotated[
        int, option("--together N", "Also hide up to N fields at once, if --sets is not given.", min=1, max=5)
    ] = 1,
    conditional: Annotated[
        bool, option("--conditional", "Take values from the nearest rows of --train, not from the catalogue.")
    ] = False,
    hide: Annotated[
        str,
        option(
            "--hide ROWS",
            "Whose fields are hidden: all, or the fifth with the top or bottom values, or a random fifth.",
        ),
    ] = "all",
    top: opt.Top = 10,
    out_files: Annotated[list[Path] | None, opt.results(".json", ".txt", *TABLE_SUFFIXES, *opt.PICTURES)] = None,
    most_sets: Annotated[
        int,
        option("--most-sets N", "At most N sets of each size from two fields on.", min=1, panel=opt.RUNNING),
    ] = 20,
    draws: opt.Draws = None,
    markers: opt.Markers = None,
    target: opt.Target = None,
    columns: opt.ColumnOptions,
    rows: opt.RowRange = None,
    engine: opt.Engine = "auto",
    csv: opt.CsvOptions,
    loading: opt.LoadingOptions,
) -> None:
    """Evaluate how reliable p_change is.

    Hides each field in turn, decides, and compares with the decision on the full row. Reports how many decisions
    change, how many changes were expected, and how well p_change ranks them. DATA are rows that were not used in
    training; without --protocol one is fitted on --train.

    [bold]Examples[/bold]

      fragility evaluate missing model.skops test.parquet --protocol audit/ --target class

      fragility evaluate missing model.skops test.parquet --train train.parquet --conditional --together 3

      fragility evaluate missing model.skops test.parquet --protocol audit/ --sets outages.csv --out missing.png
    """
    if protocol is None and train is None:
        raise DataError(
            "decisions with hidden fields need a protocol; name one with --protocol, or training rows with --train"
        )
    if train is not None and protocol is not None and not conditional:
        raise DataError("--train has no effect with --protocol unless --conditional is given; leave out --train")
    if conditional and train is None:
        raise DataError("--conditional takes values from training rows; name them with --train")
    if sets is not None and is_given(context, "together"):
        raise DataError("--sets names the fields to hide together; leave out --together or leave out --sets")
    if hide not in ("all", "top", "bottom", "random"):
        raise DataError(f"--hide must be all, top, bottom or random, got {hide!r}")
    if hide in ("top", "bottom") and (sets is not None or together != 1):
        raise DataError(f"--hide {hide} hides one field at a time; leave out --sets and --together")
    if sets is None:
        refuse_without("a log of outages in --sets", context, "markers")
    inputs: dict[str, str | Path | None] = {"MODEL": model, "DATA": data, "--protocol": protocol, "--train": train}
    plan_results(out_files, (".json", ".txt", *TABLE_SUFFIXES, *opt.PICTURES), inputs | {"--sets": sets})
    form = csv.form(data, train, sets)
    loaded = loading.load(model)
    declared = None if protocol is None else load_protocol(protocol)
    table_columns = columns.declare(field_names(loaded, declared), target)
    table = read_rows(data, table_columns, rows=rows, form=form)
    training = None if train is None else read_rows(train, table_columns, form=form, ids=False).X
    table_columns.check_dropped()
    note_unlabelled(table.labels is not None, target, data)
    result = fg.evaluate_missing(
        loaded,
        table.X,
        declared or fg.Protocol.fit(loaded, training),
        sets=None if sets is None else read_sets(sets, markers, form),
        together=together,
        most_sets=most_sets,
        training=training if conditional else None,
        conditional=conditional,
        hide=cast(Any, hide),
        draws=draws or MOST_TRIED,
        ids=table.ids,
        engine=engine,
    )
    text = result.to_text(top)
    say(text)
    save_result(result, out_files, text)


def read_sets(path: Path, markers: str | None, form: CsvFormat) -> Any:
    """Return the sets of fields that --sets names: a JSON list of lists, or a log of outages."""
    if path.suffix.lower() != ".json":
        return read_outages(path, markers, form)
    if not path.is_file():
        raise DataError(f"--sets names the file {path}, which does not exist")
    try:
        document = read_json(path)
    except ValueError as error:
        raise DataError(f"--sets {path} is not valid JSON: {error}") from error
    lists = isinstance(document, list) and all(
        isinstance(entry, list) and all(isinstance(name, str) for name in entry) for entry in document
    )
    if not lists:
        raise DataError(f'--sets {path} must contain a list of lists of fields, such as [["age"], ["age", "income"]]')
    return document
