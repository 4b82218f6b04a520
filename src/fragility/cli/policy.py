"""`fragility policy`: from certificates and labels to a rule about what to review."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import fragility as fg
from fragility.cli.options import DirArgument, MinConfidence, RankedBy, option
from fragility.cli.outputs import draw, plan_files
from fragility.cli.reading import take_given
from fragility.cli.tables import read_stress_labels
from fragility.cli.terminal import note, out

# The stress whose failures a mode is about, by its kind.
MATCHING = {"lost": ("mask", "dropout"), "wrong": ("donor",), "noisy": ("noise",), "outage": ("outages",)}


def policy(
    directory: DirArgument,
    labels: Annotated[Path, option("--labels FILE", "Held-out labels, as `fragility stress --out` writes them.")],
    risk: Annotated[
        float, option("--risk", "Largest brittle rate allowed among unreviewed predictions.", min=0.0, max=1.0)
    ] = 0.02,
    confidence: Annotated[
        float, option("--confidence", "Probability with which the policy keeps to the risk.", min=0.0, max=1.0)
    ] = 0.95,
    by: RankedBy = "exposure",
    per_class: Annotated[bool, option("--per-class", "A rule for each predicted class; all hold at once.")] = False,
    min_confidence: MinConfidence = None,
    out_file: Annotated[Path | None, option("--out FILE", "Write the policy as JSON.")] = None,
    picture: Annotated[Path | None, option("--picture FILE", "Draw the policy (.png, .svg, .pdf).")] = None,
) -> None:
    """Find which confident predictions may go unreviewed, so that few of them are brittle, with a guarantee.

    A policy that cannot be had with the labelled rows is a result, not an error: it says how many would be needed.
    With --by wrong (or another failure mode) rows are ordered by their exposure to it; take labels of the same kind.

    [bold]Examples[/bold]

      fragility stress audit/ --model model.skops --data test.parquet --out labels.parquet

      fragility policy audit/ --labels labels.parquet --risk 0.02 --out policy.json

      fragility top audit/ --policy policy.json

      fragility stress audit/ --model model.skops --data test.parquet --stressors donor --donors train.parquet \
--out wrong.parquet

      fragility policy audit/ --labels wrong.parquet --by wrong --out policy.json
    """
    from fragility.analysis.displays import ReviewPolicyDisplay

    plan_files({"--out": out_file, "--picture": picture}, {"--labels": labels})
    table = read_stress_labels(labels)
    certs = take_given(fg.open_audit(directory), table.column("id").to_pylist() if "id" in table.column_names else None)
    segments = "predicted" if per_class else None
    found = fg.ReviewPolicy.fit(
        certs, table, risk=risk, confidence=confidence, by=by, segments=segments, min_confidence=min_confidence
    )
    out().print(found.sentence())
    if (told := describe_mismatch(by, found.stress)) is not None:
        note(told)
    if out_file is not None:
        found.save(out_file)
        note(f"written to {out_file}; next: fragility top {directory} --policy {out_file}")
    if picture is not None:
        draw(ReviewPolicyDisplay.from_policy(found), picture)


def describe_mismatch(by: str, stress: Mapping[str, Any] | None) -> str | None:
    """Return that the labels are of other failures than the mode that rows are ordered by; None if they match."""
    wanted = MATCHING.get(by)
    if wanted is None or stress is None:
        return None
    kinds = [entry["kind"] for entry in stress["stressors"]]
    if set(kinds) <= set(wanted):
        return None
    found = ", ".join(kinds)
    return f"the labels are of the stress {found}, rows are ordered by {by}: {' or '.join(wanted)} would match it"
