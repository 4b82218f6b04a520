"""`fragility pack` and `fragility pack check`: an audit and what follows from it, to hand over, and to check."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

import fragility as fg
import fragility.cli.options as opt
from fragility.cli.options import argument, option, refuse_without
from fragility.cli.outputs import plan_pack
from fragility.cli.reading import read_labels
from fragility.cli.tables import read_stress_labels
from fragility.cli.terminal import EXIT_CLAIM_FAILED, note, out


def pack(
    *,
    context: typer.Context,
    directory: opt.DirArgument,
    out_path: Annotated[Path, option("--out DIR|ZIP", "The pack: an archive if its name ends in .zip, else a folder.")],
    rules: Annotated[Path | None, option("--rules FILE", "The rules of a gate (TOML), to judge the audit by.")] = None,
    against: Annotated[Path | None, option("--against DIR", "An earlier audit, for rules with an allowance.")] = None,
    labels: opt.Labels = None,
    target: opt.Target = None,
    id_column: opt.Id = None,
    stress: Annotated[
        Path | None, option("--stress FILE", "Held-out labels, as `fragility stress --out` writes them.")
    ] = None,
    parity: Annotated[
        list[Path] | None,
        option("--parity FILE", "A comparison that `fragility parity` wrote as JSON. May be repeated."),
    ] = None,
    values: Annotated[
        bool, option("--values", "Keep the values of rows in the examples of --parity; else they name fields alone.")
    ] = False,
    reliability: Annotated[
        Path | None,
        option("--reliability FILE", "Failure probabilities of the audited rows, as JSON of `fragility reliability`."),
    ] = None,
    min_confidence: opt.MinConfidence = None,
    without_certificates: Annotated[
        bool, option("--without-certificates", "Leave the certificates out; they are then named by digest.")
    ] = False,
    key: Annotated[
        Path | None, option("--key KEY", "A private key, as keygen wrote it, to sign the audit's copy and the pack.")
    ] = None,
    public_key: Annotated[
        Path | None, option("--public-key PUB", "The public key of whoever signed the audit, to verify and to pack.")
    ] = None,
    title: Annotated[str, option("--title TEXT", "What the index is called.")] = "Evidence pack",
    author: Annotated[str | None, option("--author NAME", "Who makes the pack.")] = None,
    purpose: Annotated[str | None, option("--purpose TEXT", "What the pack is made for.")] = None,
    date: Annotated[str | None, option("--date DATE", "The date to state; none is looked up, so bytes repeat.")] = None,
    csv: opt.CsvOptions,
) -> None:
    """Pack an audit to hand over: report, protocol, verdicts, signature, and what is shown of what supervisors ask.

    Every figure of the pack has its source in it; `fragility pack check` makes them all again. The same input gives
    the same bytes.

    [bold]Examples[/bold]

      fragility pack audit/ --out pack.zip

      fragility pack audit/ --rules gate.toml --labels test.parquet --target class --parity deployed.json --out pack/

      fragility pack audit/ --key audit-key --author "M. Okafor" --date 2026-11-18 --out pack.zip
    """
    from fragility.parity import ModelParity
    from fragility.questions.reliability.outcomes import FailureProbability

    if labels is None:
        refuse_without("--labels", context, "target", "id_column")
    if not parity:
        refuse_without("--parity", context, "values")
    plan_pack(out_path)
    form = csv.form(labels, stress)
    written = fg.pack(
        directory,
        out_path,
        rules=rules,
        against=against,
        labels=read_labels(labels, target, id_column, form),
        stress=None if stress is None else read_stress_labels(stress, form),
        parity=[ModelParity.load(path) for path in parity or ()],
        values=values,
        reliability=None if reliability is None else FailureProbability.load(reliability),
        min_confidence=min_confidence,
        certificates=not without_certificates,
        key=key,
        public_key=public_key,
        title=title,
        author=author,
        purpose=purpose,
        date=date,
    )
    note(f"written to {written}; next: fragility pack check {written}")


def check(
    pack_path: Annotated[Path, argument("PACK", "What `fragility pack` wrote: a folder or an archive.")],
    audit: Annotated[Path | None, option("--audit DIR", "The audit's folder, for a pack without certificates.")] = None,
    public_key: Annotated[
        Path | None, option("--public-key PUB", "The public key of whoever is to have signed the pack.")
    ] = None,
) -> None:
    """Make everything in a pack again from its certificates, and compare; neither model nor rows are needed.

    Exit code 0: it holds. 1: it does not, and why. 2: it could not be checked.

    [bold]Examples[/bold]

      fragility pack check pack.zip

      fragility pack check pack/ --public-key audit-key.pub
    """
    outcome = fg.verify_pack(pack_path, audit=audit, public_key=public_key)
    out().print(escape(str(outcome)))
    if not outcome:
        raise typer.Exit(EXIT_CLAIM_FAILED)
