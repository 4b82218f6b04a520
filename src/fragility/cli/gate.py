"""`fragility gate` and `fragility gate init`: check audits by declared rules, and derive such rules."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

import fragility as fg
import fragility.cli.options as opt
from fragility.cli.options import option, refuse_without
from fragility.cli.outputs import plan_files, plan_results, save_result
from fragility.cli.tables import open_rows, read_labels, read_stress_labels
from fragility.cli.terminal import EXIT_CLAIM_FAILED, note, out
from fragility.pages.results import TABLE_SUFFIXES, checked_suffix

SUFFIXES = (".json", ".xml", ".md", ".txt", ".html", *TABLE_SUFFIXES)  # .xml is JUnit's


def gate(
    *,
    context: typer.Context,
    directories: opt.DirsArgument,
    rules: Annotated[Path, opt.RULES],
    against: Annotated[list[Path] | None, opt.AGAINST] = None,
    strict: Annotated[bool, option("--strict", "An inconclusive verdict fails too.")] = False,
    out_files: Annotated[list[Path] | None, opt.results(*SUFFIXES)] = None,
    data: opt.SomeData = None,
    stress: Annotated[list[Path] | None, opt.STRESS] = None,
    labels: opt.Labels = None,
    stress_against: Annotated[
        list[Path] | None,
        option("--stress-against FILE", "Held-out labels of each earlier audit.", panel=opt.ADDED),
    ] = None,
    labels_against: Annotated[
        Path | None,
        option(
            "--labels-against FILE", "True classes of the earlier audit. (default: those of --labels)", panel=opt.ADDED
        ),
    ] = None,
    target: opt.Target = None,
    id_column: opt.Id = None,
    csv: opt.CsvOptions,
) -> None:
    """Check an audit by declared rules, for use in CI.

    The audit is judged alone, or against an earlier audit. With audits of several models that differ only by being
    trained again (several DIR, --against and --stress, one for each), the verdict is about the training procedure and
    not about single models.

    A rule passes or fails if the audited rows show it with the declared confidence, and is inconclusive otherwise.

    Exit code 0: no rule failed. 1: a rule failed, or with --strict is inconclusive. 2: it could not be checked.

    [bold]Examples[/bold]

      fragility gate audit-new/ --against audit-old/ --rules gate.toml --strict --out gate.xml --out gate.md

      fragility gate audit/ --rules gate.toml --labels test.parquet --target class

      fragility gate new-1/ new-2/ new-3/ --against old-1/ --against old-2/ --against old-3/ --rules gate.toml
    """
    if not against:
        refuse_without("--against", context, "stress_against", "labels_against")
    if labels is None and labels_against is None:
        refuse_without("--labels", context, "target")
        if data is None:
            refuse_without("--data or --labels", context, "id_column")
    form = csv.form(labels, labels_against, data)
    held_out = {f"--stress ({path.name})": path for path in stress or ()}
    plan_results(out_files, SUFFIXES, {"--rules": rules, "--labels": labels, **held_out})
    declared = fg.Gate.load(rules)
    audits = [fg.open_audit(directory) for directory in directories]
    columns = [rule.by for rule in declared.rules if rule.by not in (None, "predicted")]
    result = declared.check(
        audits,
        [fg.open_audit(directory) for directory in against] if against else None,
        rows=None
        if data is None
        else open_rows(data, [by for by in columns if by], audits[0].protocol, id_column, form),
        labels=read_labels(labels, target, id_column, form),
        labels_against=read_labels(labels_against, target, id_column, form),
        stress=[read_stress_labels(path, form) for path in stress] if stress else None,
        stress_against=[read_stress_labels(path, form) for path in stress_against] if stress_against else None,
    )
    out().print(escape(result.to_text()))
    save_result(result, out_files)
    if result.outcome == "fail" or (strict and result.outcome == "inconclusive"):
        raise typer.Exit(EXIT_CLAIM_FAILED)


def init(
    directories: opt.DirsArgument,
    out_file: Annotated[Path, option("--out FILE", "The rules to write (.toml).")],
    allowance: opt.Allowance = None,
    min_confidence: opt.MinConfidence = None,
) -> None:
    """Derive the rules of a gate from a good audit, to check later audits with.

    The audit itself keeps to the limits; with --allowance the rules compare with an earlier audit instead. One audit
    cannot show how far retrained models differ: limits from at least three audits of them cover that too.

    [bold]Examples[/bold]

      fragility gate init audit/ --out gate.toml

      fragility gate init seed-1/ seed-2/ seed-3/ seed-4/ seed-5/ --out gate.toml

      fragility gate init audit/ --allowance 0.02 --out gate.toml
    """
    checked_suffix(out_file, (".toml",))
    plan_files({"--out": out_file}, {})
    audits = directories[0] if len(directories) == 1 else directories
    derived = fg.Gate.derive(audits, allowance=allowance, min_confidence=min_confidence)
    names = ", ".join(directory.name for directory in directories)
    noun = "the audit" if len(directories) == 1 else f"{len(directories)} audits,"
    derived.save(out_file, f"Derived from {noun} {names}; edit as needed.\nSee docs/guide/in-ci.md.")
    note(f"{len(derived.rules)} rules written to {out_file}; next: fragility gate {directories[0]} --rules {out_file}")
