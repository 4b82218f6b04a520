"""Is the deployed model the one that was audited? What comparisons with other artefacts found."""

from __future__ import annotations

from collections.abc import Sequence

from fragility.pages.sections import Facts, Notice, PageBlock, Section, Table, Text
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


def show_parities(parities: Sequence[ModelParity]) -> Section:
    """Return the comparisons, one after the other."""
    blocks: list[PageBlock] = [Text([OPENING])]
    for one in parities:
        blocks += _show_parity(one)
    return Section("parity", "Is the deployed model the one that was audited?", blocks)


def _show_parity(parity: ModelParity) -> list[PageBlock]:
    verdict = f"{describe_verdict(parity)}."
    blocks: list[PageBlock] = [Text([verdict]) if parity.agrees else Notice(verdict)]
    few = "" if parity.rows == parity.rows_given else f" of {parity.rows_given:,}, those with the smallest digests"
    facts = [
        ("A, the reference", f"{parity.a.name} ({parity.a.kind}), fingerprint {parity.a.fingerprint}"),
        ("B", f"{parity.b.name} ({parity.b.kind}), fingerprint {parity.b.fingerprint}, columns by {parity.b.columns}"),
        ("Rows", f"{parity.rows:,}{few}"),
        ("Tolerance", f"{parity.tolerance:g} in probability; a label that differs within it of a tie is no difference"),
        *(("Note", note) for note in parity.notes),
    ]
    head, *rows = tabulate_kinds(parity)
    caption = f"States of {parity.a.name} and {parity.b.name}"
    blocks += [Facts(facts), Table(caption, head, rows, wrapped=True)]
    if parity.reveals:
        head, *rows = tabulate_reveals(parity, SHOWN_REVEALS)
        blocks.append(Table("What reveals a difference, most labels first", head, rows, wrapped=True))
    example = parity.smallest
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
