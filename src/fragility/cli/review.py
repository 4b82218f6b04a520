"""`fragility policy`, `review` and `review export`: select cases, decide them in a workbench, export the decisions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

import fragility as fg
import fragility.cli.options as opt
from fragility.base.errors import FragilityError
from fragility.base.libraries import say_lacking
from fragility.cli.options import load_protocol, option, refuse_without, split_names
from fragility.cli.outputs import plan_results, save_result
from fragility.cli.tables import Columns, field_names, note_unlabelled, read_rows, read_stress_labels, take_rows
from fragility.cli.terminal import note, out
from fragility.pages.results import TABLE_SUFFIXES

STORE = option("--store FILE", "The file with the decisions of a review. (default DIR/review.sqlite)")
FORMS = (".json", ".txt", *opt.PICTURES)  # of a policy
# The kinds of stress that correspond to a failure mode.
MATCHING = {"lost": ("mask", "dropout"), "wrong": ("donor",), "noisy": ("noise",), "outage": ("outages",)}


class MissingExtraError(FragilityError):
    """A command needs libraries that are not installed by default."""


def say_lacking_workbench() -> str | None:
    """Return what to install before the workbench can be opened; None if nothing is missing."""
    return say_lacking("the review workbench", "duckdb", "fastapi", "uvicorn")


def review(
    *,
    context: typer.Context,
    directory: opt.DirArgument,
    row: opt.SomeRow = None,
    policy: opt.Policy = None,
    stress: opt.Stress = None,
    data: opt.SomeData = None,
    target: opt.Target = None,
    id_column: opt.Id = None,
    model: opt.SomeModel = None,
    reasons: Annotated[Path | None, option("--reasons FILE", "Reasons to choose from: lines of `code: words`.")] = None,
    store: Annotated[Path | None, STORE] = None,
    port: opt.Port = None,
    no_open: Annotated[bool, option("--no-open", "Print the address, but do not open the browser.")] = False,
    plain_address: Annotated[
        bool, option("--plain-address", "Use the address 127.0.0.1, for browsers that do not resolve .localhost names.")
    ] = False,
    csv: opt.CsvOptions,
    loading: opt.LoadingOptions,
) -> None:
    """Decide case by case, in a workbench in your browser.

    Only this machine can reach the workbench. It begins with the most fragile cases, with those of a --policy, or
    with one --row. With --stress the queue can follow the rehearsal of that stress. With --data it shows and filters
    the fields of rows, and with --model it also answers what-if questions.

    [bold]Examples[/bold]

      fragility review audit/ --model model.skops --data test.parquet --target class --id loan_id

      fragility review audit/ --row L0703

      fragility review audit/ --policy policy.json --store decisions.sqlite --no-open
    """
    if data is None:
        refuse_without("--data", context, "model", "target", "id_column")
    if model is None:
        refuse_without("--model", context, "trust", "classes")
    if lacking := say_lacking_workbench():
        raise MissingExtraError(lacking)
    from fragility.apps.review.app import Place, listen, open_workbench, serve
    from fragility.apps.review.history import DEFAULT_REASONS, read_reasons
    from fragility.apps.review.store import STORE_FILE

    form = csv.form(data)
    X = ids = audited = None
    if data is not None:
        columns = Columns(target, id_column, fields=field_names(None, load_protocol(directory)))
        rows = read_rows(data, columns, form=form)
        note_unlabelled(rows.labels is not None, target, data)
        X, ids, audited = rows.X, rows.ids, None if model is None else loading.load(model)
    review_policy = None if policy is None else fg.ReviewPolicy.load(policy)
    rehearsed = None if stress is None else read_stress_labels(stress, form)
    codes = DEFAULT_REASONS if reasons is None else read_reasons(reasons)
    listening = listen(port, Place.recall(store or directory / STORE_FILE).port)
    bench = open_workbench(
        directory,
        store=store,
        policy=review_policy,
        X=X,
        ids=ids,
        model=audited,
        reasons=codes,
        row=row,
        labels=rehearsed,
    )

    def announce(address: str) -> None:
        out().print(address, soft_wrap=True)
        note("the address works once, for one browser; if the browser does not resolve it, add --plain-address")
        note(f"decisions are stored in {bench.store.path}; Ctrl-C ends the workbench")

    serve(bench, listening, announce=announce, browser=not no_open, plain=plain_address)
    note(f"stopped; next: fragility review export --store {bench.store.path} --out decisions.csv")


def export(
    store: Annotated[Path, STORE],
    out_files: Annotated[list[Path], opt.results(*TABLE_SUFFIXES)],
    history: Annotated[bool, option("--history", "Write every entry, not only current decisions.")] = False,
) -> None:
    """Write decisions as a table, keyed by the digest of their certificates.

    [bold]Examples[/bold]

      fragility review export --store audit/review.sqlite --out decisions.csv

      fragility review export --store audit/review.sqlite --out history.parquet --history
    """
    from fragility.apps.review.history import escape_formulas, tabulate_decisions
    from fragility.apps.review.store import Store
    from fragility.pages.results import write_table

    plan_results(out_files, TABLE_SUFFIXES, {"--store": store})
    decisions = Store.open_to_read(store)
    try:
        table = tabulate_decisions(decisions.everything(), history=history)
    finally:
        decisions.close()
    for path in out_files:
        write_table(path, escape_formulas(table) if path.suffix.lower() == ".csv" else table)
        out().print(f"{table.num_rows} {'entries' if history else 'decisions'} in {path}")


def policy(
    *,
    directory: opt.DirArgument,
    stress: Annotated[Path, opt.STRESS],
    risk: opt.Risk = 0.02,
    confidence: Annotated[
        float, option("--confidence P", "Probability with which the risk is not exceeded.", min=0.0, max=1.0)
    ] = 0.95,
    score: opt.Score = "exposure",
    per_class: Annotated[bool, option("--per-class", "A rule for each predicted class; all hold at once.")] = False,
    min_confidence: opt.MinConfidence = None,
    out_files: Annotated[list[Path] | None, opt.results(*FORMS)] = None,
) -> None:
    """Find predictions that may go unreviewed, with a guarantee.

    The policy bounds how many of the confident predictions left unreviewed are brittle under the stress of the labels.
    If the labelled rows do not suffice, that is a result and not an error: it says how many are needed. With --score
    wrong (or another failure mode) rows are ordered by their exposure to it; use labels of the same kind. Of several
    scores, such as --score exposure,rehearsal,confidence, the one that needs the least review is taken.

    [bold]Examples[/bold]

      fragility evaluate labels audit/ --model model.skops --data test.parquet --out stress.parquet

      fragility policy audit/ --stress stress.parquet --risk 0.02 --out policy.json

      fragility policy audit/ --stress stress.parquet --score exposure,rehearsal,confidence --out policy.svg
    """
    from fragility.analysis.displays import ReviewPolicyDisplay

    plan_results(out_files, FORMS, {"--stress": stress})
    table = read_stress_labels(stress)
    certs = take_rows(fg.open_audit(directory), table.column("id").to_pylist() if "id" in table.column_names else None)
    segments = "predicted" if per_class else None
    review_policy = fg.ReviewPolicy.fit(
        certs,
        table,
        risk=risk,
        confidence=confidence,
        by=split_names(score),
        segments=segments,
        min_confidence=min_confidence,
    )
    out().print(review_policy.sentence())
    if (mismatch := describe_mismatch(review_policy.by, review_policy.stress)) is not None:
        note(mismatch)
    save_result(
        review_policy, out_files, review_policy.sentence(), lambda: ReviewPolicyDisplay.from_policy(review_policy)
    )
    if written := [path for path in out_files or () if path.suffix.lower() == ".json"]:
        labels = f" --stress {stress}" if review_policy.by == "rehearsal" else ""
        note(f"next: fragility show {directory} --policy {written[0]}{labels}")


def describe_mismatch(by: str, stress: Mapping[str, Any] | None) -> str | None:
    """Return a note if the stress of the labels does not match the mode that rows are ordered by, else None."""
    matching = MATCHING.get(by)
    if matching is None or stress is None:
        return None
    kinds = [entry["kind"] for entry in stress["stressors"]]
    if set(kinds) <= set(matching):
        return None
    return (
        f"the labels are of the stress {', '.join(kinds)}, but rows are ordered by {by}: {' or '.join(matching)} "
        "would match it"
    )
