"""`fragility keygen`, `sign`, `prove` and `check-proof`: who stands behind an audit, and that a row belongs to it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

import fragility as fg
from fragility.cli.options import DirArgument, Row, argument, option
from fragility.cli.outputs import plan_files
from fragility.cli.terminal import EXIT_CLAIM_FAILED, note, out


def keygen(
    out_file: Annotated[Path, option("--out KEY", "The private key to write; KEY.pub is the public one.")],
) -> None:
    """Make an Ed25519 key pair: a private key that only you can read, and a public one for those who verify.

    [bold]Example[/bold]

      fragility keygen --out audit-key
    """
    plan_files({"--out": out_file}, {})
    public = fg.generate_keys(out_file)
    out().print(escape(f"{out_file}: the private key, for you alone; {public}: the public one, for whoever verifies"))


def sign(
    target: Annotated[Path, argument("TARGET", "An audit folder, or a protocol file.")],
    key: Annotated[Path, option("--key KEY", "The private key, as keygen wrote it.")],
) -> None:
    """Sign an audit, or a protocol before the audit.

    [bold]Examples[/bold]

      fragility sign audit/ --key audit-key

      fragility sign protocol.json --key audit-key
    """
    written = fg.sign(target, key)
    out().print(escape(f"{written}: signed"))
    if target.is_dir():
        note(f"next: fragility verify {target} --public-key {key}.pub")


def prove(
    directory: DirArgument,
    row: Row,
    out_file: Annotated[Path, option("--out FILE", "The proof to write (JSON).")],
) -> None:
    """Write a proof that one row's certificate belongs to an audit, for someone who has neither the rest nor the data.

    [bold]Example[/bold]

      fragility prove audit/ --row 17 --out proof.json
    """
    plan_files({"--out": out_file}, {"DIR": directory})
    proof = fg.prove(directory, row, out_file)
    out().print(escape(f"{out_file}: row {row} of {proof['count']}, root {proof['root_digest']}"))


def verify_proof(
    file: Annotated[Path, argument("FILE", "What prove wrote.")],
    root: Annotated[str | None, option("--root DIGEST", "The audit's root digest, from where you trust it.")] = None,
    public_key: Annotated[
        Path | None, option("--public-key PUB", "The public key of whoever signed the audit.")
    ] = None,
    signature: Annotated[
        Path | None, option("--signature FILE", "The audit's signature.dsse.json, which has a root.")
    ] = None,
) -> None:
    """Check that a proof's certificate belongs to the audit with a root; neither model nor data are needed.

    Exit code 0: it does. 1: it does not, and why. 2: it could not be checked.

    [bold]Examples[/bold]

      fragility check-proof proof.json --root sha256:...

      fragility check-proof proof.json --public-key audit-key.pub --signature audit/signature.dsse.json
    """
    outcome = fg.verify_proof(file, root=root, public_key=public_key, signature=signature)
    out().print(escape(str(outcome)))
    if not outcome:
        raise typer.Exit(EXIT_CLAIM_FAILED)
