"""`fragility stress` and `fragility evaluate`: held-out brittle labels, and what a ranking is worth against them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import fragility as fg
import fragility.cli.options as opt
from fragility.base.errors import DataError
from fragility.cli.options import is_given, load_inputs, option, read_name_or_json, refuse_without
from fragility.cli.outputs import plan_files, save_result
from fragility.cli.reading import take_given
from fragility.cli.tables import Columns, field_names, note_unlabelled, read_rows, read_table
from fragility.cli.terminal import err, note, say
from fragility.pages.results import TABLE_SUFFIXES, checked_suffix

if TYPE_CHECKING:
    from fragility.tables.formats import CsvFormat

Markers = Annotated[
    str | None,
    option(
        "--markers A,B",
        "Values of the --outages rows that mean 'unavailable' (null: missing), or a JSON file {field: \\[values]}.",
    ),
]


@dataclass(frozen=True)
class StressOptions:
    """What the rows are put under."""

    outages: Annotated[
        Path | None,
        option(
            "--outages FILE",
            "Stress with recorded outages instead: a table of event and field, or booleans, or rows for --markers.",
        ),
    ] = None
    markers: Markers = None
    stressors: Annotated[
        str,
        option("--stressors A,B", "What happens to the rows: mask, dropout, noise, donor, or several of them."),
    ] = "mask,dropout,noise"
    donors: Annotated[
        Path | None,
        option("--donors TRAIN", "Training rows, whose values the stressor donor puts in place of a row's own."),
    ] = None
    severity: Annotated[
        float, option("--severity", "Rate of mask, dropout and donor, extent of noise.", min=0.0, max=1.0)
    ] = 0.3
    draws: Annotated[int, option("--draws", "Random draws for each row and stressor.", min=1)] = 16
    rule: Annotated[str, option("--rule NAME", "expected (mean margin over draws) or any (a single draw).")] = (
        "expected"
    )
    tau_confidence: Annotated[
        float, option("--tau-confidence", "Where a prediction counts as high-confidence.", min=0.0, max=1.0)
    ] = 0.90
    tau_collapse: Annotated[
        float, option("--tau-collapse", "Share of its margin a prediction must lose to be brittle.", min=0.0)
    ] = 0.50
    seed: Annotated[int, option("--seed", "Seed of the random draws.", min=0)] = 0

    def declare(self, context: typer.Context, form: CsvFormat) -> fg.Stress:
        """Return the stress; refuse options that would have no effect beside others."""
        if self.outages is None:
            refuse_without("--outages", context, "markers")
            stressors = self._declare_random()
        else:
            for given, meaning in (("severity", "the extent"), ("stressors", "the kind"), ("donors", "a part")):
                if is_given(context, given):
                    raise DataError(
                        f"--{given} is {meaning} of random stress, which --outages replaces; leave out one of the two"
                    )
            stressors = (read_outages(self.outages, self.markers, form),)
        return fg.Stress(stressors, self.draws, self.rule, self.tau_confidence, self.tau_collapse, self.seed)

    def _declare_random(self) -> tuple[Any, ...]:
        from fragility.questions.stress.stressors import Donor, Dropout, Mask, Noise

        kinds: dict[str, Any] = {kind.kind: kind for kind in (Mask, Dropout, Noise, Donor)}
        named = split_names(self.stressors)
        if not named or (unknown := [name for name in named if name not in kinds]):
            got = repr(unknown[0]) if named else "none"
            raise DataError(f"--stressors must be among {', '.join(kinds)}, with commas between, got {got}")
        if ("donor" in named) != (self.donors is not None):
            raise DataError(
                "--stressors donor lends values of training rows; name them with --donors"
                if self.donors is None
                else "--donors are rows for the stressor donor, and --stressors does not name it; add it, or leave out "
                "--donors"
            )
        return tuple(kinds[name](self.severity) for name in named)

    @property
    def inputs(self) -> dict[str, Path | None]:
        """The files that are read, by option."""
        return {"--outages": self.outages, "--donors": self.donors}

    def read_donors(self, known: Columns, form: CsvFormat) -> Any:
        """Return the rows that lend their values; None if no stressor needs any."""
        return None if self.donors is None else read_rows(self.donors, known, form=form, ids=False).X


def stress(
    *,
    context: typer.Context,
    protocol: opt.ProtocolArgument,
    model: opt.ModelOption,
    data: opt.DataOption,
    out_file: Annotated[
        Path | None, option("--out FILE", "Write the labels, one row per prediction (.parquet, .csv).")
    ] = None,
    stressing: StressOptions,
    target: opt.Target = None,
    columns: opt.ColumnOptions,
    rows: opt.RowRange = None,
    csv: opt.CsvOptions,
    loading: opt.LoadingOptions,
) -> None:
    """Find which confident predictions break under random loss of evidence, or under your own recorded outages.

    These labels are held out: no certificate and no score uses them.

    [bold]Examples[/bold]

      fragility stress audit/ --model model.skops --data test.parquet --target class --out labels.parquet

      fragility stress audit/ --model model.skops --data test.parquet --outages outages.csv

      fragility stress audit/ --model model.skops --data test.parquet --outages train.parquet --markers '?,unknown'

      fragility stress audit/ --model model.skops --data test.parquet --stressors donor --donors train.parquet
    """
    from fragility.analysis.ranking.comparison import label_noise_ceiling
    from fragility.analysis.ranking.metrics import DEFINED

    if out_file is not None:
        checked_suffix(out_file, TABLE_SUFFIXES)
    plan_files({"--out": out_file}, {"--model": model, "--data": data, **stressing.inputs})
    form = csv.form(data, stressing.outages, stressing.donors)
    declared = stressing.declare(context, form)
    loaded, pi, given = load_inputs(model, protocol, data, form, target, columns, loading, rows)
    donors = stressing.read_donors(columns.declare(field_names(loaded, pi), target), form)
    with _show_status("stressing"):
        labels = fg.label_brittle(loaded, given.X, pi, declared, ids=given.ids, donors=donors)
        independent = fg.label_brittle(loaded, given.X, pi, declared.independent(), ids=given.ids, donors=donors)
    for name, count in labels.counts().items():
        say(f"{count:8d}  {name}")
    ceiling = label_noise_ceiling(labels, independent)
    shown = f"{ceiling.auroc:.3f}" if ceiling.state == DEFINED else ceiling.state
    say(f"Label-noise ceiling (AUROC of independent draws): {shown}")
    if out_file is not None:
        labels.save(out_file)
        note(f"labels written to {out_file}")


def evaluate(
    *,
    context: typer.Context,
    directory: opt.DirArgument,
    model: opt.ModelOption,
    data: opt.DataOption,
    validation: Annotated[
        Path | None, option("--validation FILE", "Rows on which each baseline's direction is chosen.")
    ] = None,
    target: opt.Target = None,
    columns: opt.ColumnOptions,
    shap: Annotated[int, option("--shap N", "Explain N rows for the group-SHAP baseline; 0 leaves it out.", min=0)] = 0,
    by: Annotated[
        str, option("--by SCORE", "The ranking to judge: exposure, the paper's fds, or one of the --modes.")
    ] = "exposure",
    modes: Annotated[
        str | None,
        option("--modes A,B", "Compare the exposures to these failure modes of the protocol too: lost, wrong, noisy."),
    ] = None,
    random_orders: Annotated[
        int, option("--random-orders N", "Random group orders to average; 0 leaves them out.", min=0)
    ] = 5,
    json_file: opt.JsonOut = None,
    csv_file: Annotated[Path | None, option("--csv FILE", "Write the table of scores as CSV.")] = None,
    stressing: StressOptions,
    engine: opt.Engine = "auto",
    csv: opt.CsvOptions,
    loading: opt.LoadingOptions,
) -> None:
    """Does exposure find the predictions that break under stress better than the model's confidence does?

    The audited rows are put under held-out stress, which no certificate has seen. Every score is judged by how well it
    finds the confident predictions that break; --by fds judges the paper's score instead of exposure.

    [bold]Examples[/bold]

      fragility evaluate audit/ --model model.skops --data test.parquet --target class

      fragility evaluate audit/ --model model.skops --data test.parquet --target class --validation valid.parquet

      fragility evaluate audit/ --model model.skops --data test.parquet --outages outages.csv --json evaluation.json

      fragility evaluate audit/ --model model.skops --data test.parquet --stressors noise --modes noisy --by noisy
    """
    if validation is None:
        refuse_without("--validation", context, "engine")
    plan_files(
        {"--json": json_file, "--csv": csv_file},
        {"--model": model, "--data": data, "--validation": validation, **stressing.inputs},
    )
    form = csv.form(data, validation, stressing.outages, stressing.donors)
    declared = stressing.declare(context, form)
    audit = fg.open_audit(directory)
    loaded = loading.load(model)
    known = columns.declare(field_names(loaded, audit.protocol), target)
    given = read_rows(data, known, form=form)
    certs = take_given(audit, given.ids)
    held = None
    if validation is not None:
        found = read_rows(validation, known, form=form, ids=False)
        held = found.X, found.labels
    donors = stressing.read_donors(known, form)
    known.check_dropped()
    note_unlabelled(given.labels is not None, target, data)
    with _show_status("evaluating"):
        judged = fg.evaluate(
            certs,
            loaded,
            given.X,
            given.labels,
            validation=held,
            stress=declared,
            baselines=fg.Baselines(random_orders, shap),
            by=by,
            modes=() if modes is None else split_names(modes),
            donors=donors,
            ids=given.ids,
            engine=engine,
            seed=stressing.seed,
        )
    say(judged.to_text())
    save_result(judged, json_file, csv_file)


def split_names(text: str) -> list[str]:
    """`wrong, noisy` as names."""
    return [name.strip() for name in text.split(",") if name.strip()]


def _show_status(what: str) -> AbstractContextManager[Any]:
    console = err()
    return console.status(what) if console.is_terminal else nullcontext()


def read_outages(path: Path, markers: str | None, form: CsvFormat) -> fg.Outages:
    """Read a log of outages."""
    from fragility.questions.stress.declaration import outage_events

    return fg.Outages.from_events(outage_events(read_table(path, form), markers=parse_markers(markers)))


def parse_markers(text: str | None) -> Any:
    """`?,unknown,-9` or a JSON file; a word that is a number stands for both, since a file does not tell."""
    if text is None:
        return None
    document = read_name_or_json(text, "--markers")
    if not isinstance(document, str):
        return document
    found: list[object] = []
    for word in document.split(","):
        found.append(None if word == "null" else word)
        try:
            found.append(float(word))
        except ValueError:
            continue
    return found
