"""`fragility sign`, `sign keys`, `sign prove` and `pack`: sign an audit, prove one of its rows, and pack it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

import fragility as fg
import fragility.cli.options as opt
from fragility.cli.options import argument, option, refuse_without
from fragility.cli.outputs import plan_files, plan_pack
from fragility.cli.tables import read_labels, read_stress_labels
from fragility.cli.terminal import note, out


def sign(
    path: Annotated[Path, argument("PATH", "An audit's folder, or a protocol file.")],
    key: Annotated[Path, opt.KEY],
) -> None:
    """Sign an audit, or a protocol before the audit.

    [bold]Examples[/bold]

      fragility sign audit/ --key audit-key

      fragility sign protocol.json --key audit-key
    """
    written = fg.sign(path, key)
    out().print(escape(f"{written}: signed"))
    if path.is_dir():
        note(f"next: fragility verify {path} --public-key {key}.pub")


def keys(
    out_file: Annotated[Path, option("--out KEY", "The private key to write; KEY.pub is the public one.")],
) -> None:
    """Make an Ed25519 key pair: a private key that only you can read, and a public one for verifiers.

    [bold]Example[/bold]

      fragility sign keys --out audit-key
    """
    plan_files({"--out": out_file}, {})
    public = fg.generate_keys(out_file)
    out().print(escape(f"{out_file}: the private key, for you only; {public}: the public key, for verifiers"))


def prove(
    directory: opt.DirArgument,
    row: Annotated[str, opt.ROW],
    out_file: Annotated[Path, option("--out FILE", "The proof to write (JSON).")],
) -> None:
    """Write a proof that one row's certificate belongs to an audit; checking it needs neither the audit nor the data.

    [bold]Example[/bold]

      fragility sign prove audit/ --row 17 --out proof.json
    """
    plan_files({"--out": out_file}, {"DIR": directory})
    proof = fg.prove(directory, row, out_file)
    out().print(escape(f"{out_file}: row {row} of {proof['count']}, root {proof['root_digest']}"))


def pack(
    *,
    context: typer.Context,
    directory: opt.DirArgument,
    out_path: Annotated[Path, option("--out DIR|ZIP", "The pack: an archive if its name ends in .zip, else a folder.")],
    labels: opt.Labels = None,
    target: opt.Target = None,
    id_column: opt.Id = None,
    rules: Annotated[Path | None, opt.RULES] = None,
    against: Annotated[Path | None, opt.AGAINST] = None,
    stress: Annotated[Path | None, opt.STRESS] = None,
    key: Annotated[Path | None, opt.KEY] = None,
    public_key: opt.PublicKey = None,
    min_confidence: opt.MinConfidence = None,
    without_certificates: Annotated[
        bool, option("--without-certificates", "Leave the certificates out and name them by digest.")
    ] = False,
    parity: opt.Parities = None,
    values: opt.Values = False,
    reliability: opt.Reliability = None,
    title: Annotated[str, option("--title TEXT", "The title of the index.", panel=opt.STATED)] = "Evidence pack",
    author: opt.Author = None,
    purpose: opt.Purpose = None,
    date: opt.Date = None,
    csv: opt.CsvOptions,
) -> None:
    """Pack an audit with its report and further evidence, to hand over.

    A pack contains report, protocol, verdicts, signature, and a table of what it shows of supervisors' requirements.
    Every figure of the pack has its source in it, and `fragility verify` computes it again. The same input gives the
    same bytes. With --key the audit's copy and the pack are signed.

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
    note(f"written to {written}; next: fragility verify {written}")
