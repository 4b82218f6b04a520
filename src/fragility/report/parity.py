"""Is the deployed model the one that was audited? What comparisons with other artefacts found."""

from __future__ import annotations

from collections.abc import Sequence

from fragility.pages.sections import Block, Facts, Notice, Section, Table, Text
from fragility.parity.result import (
    CLEAN,
    ModelParity,
    describe_change,
    describe_verdict,
    tabulate_kinds,
    tabulate_reveals,
)

SHOWN_REVEALS = 10
OPENING = (
    "The audit speaks of one file. What answers in production may be another: a converted file, the file of a booster, "
    "a service. Both were asked about the same rows as they are, and with evidence lost, missing, wrong and noisy, "
    "because converters agree on clean rows and differ elsewhere."
)


def show_parities(found: Sequence[ModelParity]) -> Section:
    """Return the comparisons, one after the other."""
    blocks: list[Block] = [Text([OPENING])]
    for one in found:
        blocks += _show_parity(one)
    return Section("parity", "Is the deployed model the one that was audited?", blocks)


def _show_parity(found: ModelParity) -> list[Block]:
    verdict = f"{describe_verdict(found)}."
    blocks: list[Block] = [Text([verdict]) if found.agrees else Notice(verdict)]
    few = "" if found.rows == found.rows_given else f" of {found.rows_given:,}, those with the smallest digests"
    facts = [
        ("A, the reference", f"{found.a.name} ({found.a.kind}), fingerprint {found.a.fingerprint}"),
        ("B", f"{found.b.name} ({found.b.kind}), fingerprint {found.b.fingerprint}, columns by {found.b.columns}"),
        ("Rows", f"{found.rows:,}{few}"),
        ("Tolerance", f"{found.tolerance:g} in probability; a label that differs within it of a tie is no difference"),
        *(("Note", each) for each in found.notes),
    ]
    head, *rows = tabulate_kinds(found)
    caption = f"States of {found.a.name} and {found.b.name}"
    blocks += [Facts(facts), Table(caption, head, rows, wrapped=True)]
    if found.reveals:
        head, *rows = tabulate_reveals(found, SHOWN_REVEALS)
        blocks.append(Table("What reveals a difference, most labels first", head, rows, wrapped=True))
    example = found.smallest
    if example is not None:
        entries = [
            ("Smallest example", describe_change(example)),
            ("A", str(example.a)),
            ("B", str(example.b)),
            *([("The row, to paste", example.to_python())] if example.row else []),
        ]
        if example.kind == CLEAN:
            entries[0] = ("Example", describe_change(example))
        blocks.append(Facts(entries))
    return blocks
