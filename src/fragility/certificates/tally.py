"""Tally: one pass over the pieces of an audit, from which its summary and its signed statement are made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from fragility.arrays import Booleans, Floats
from fragility.blocks.lattice.values import LatticeDeclaration
from fragility.certificates.flips import FLIP_COUNTS, bound_flips, read_share
from fragility.errors import CertificateError, DataError
from fragility.ids import IdSpan, say_unlabelled
from fragility.intervals import Share
from fragility.protocol import Protocol
from fragility.saving import NanEqual
from fragility.scores import CONFIDENT
from fragility.text import BriefRepr
from fragility.wording import NONE_AT_ALL, NOT_SEARCHED, UNDECIDED, UPPER_BOUND

SCORES = ("confidence", "margin", "flip_budget", "rcma", "fds", "exposure", "independent_loss", "common_loss")
LATTICE_COUNTS = ("searched", "fewer_suffice", "path_missed", "never_fails", "unsettled")


@dataclass(frozen=True, eq=False, repr=False)
class AuditSummary(NanEqual, BriefRepr):
    """Means and shares over the certificates of one audit.

    Every row counts: a prediction that never flips enters the mean flip budget as K + 1, as its certificate says, and
    `share_never_flips` states how many those are. Shares `confident_*` are of the confident predictions and NaN where
    there are none; `accuracy` is None without labels, the fields of the lattice block without such a block.
    """

    rows: int
    min_confidence: float
    mean_confidence: float
    mean_margin: float
    mean_flip_budget: float
    share_never_flips: float  # along the path
    mean_rcma: float
    mean_fds: float
    mean_exposure: float
    mean_independent_loss: float
    median_independent_loss: float  # a few rows near the edge lose many times their margin, and carry the mean
    mean_common_loss: float  # NaN where the protocol has no attenuate_all
    confident: int
    after_one: Share  # of the confident predictions: some group flips them alone
    early: Share  # one or two groups flip them, as far as it is known
    early_on_path: int  # those of them that the path finds
    holds: Share  # no loss of whole groups flips them, proved
    confident_mean_fds: float
    confident_mean_exposure: float
    no_flip_under: Mapping[str, float]
    accuracy: float | None = None
    confident_accuracy: float | None = None
    searched: int | None = None  # rows whose smallest failing set was searched
    fewer_suffice: int | None = None  # rows whose path flips, but with more groups than need be
    path_missed: int | None = None  # rows whose path never flips, though a set of groups does
    never_fails: int | None = None  # rows that no loss of whole groups flips, proved
    unsettled: int | None = None  # rows whose smallest set is not proved
    mean_smallest_size: float | None = None  # of the rows with a set; NaN where there are none
    decisions_lost: float | None = None  # expected, at the declared rates
    mean_failure_probability: float | None = None

    @property
    def confident_flips_after_one(self) -> float:
        """The share of confident predictions that some group flips alone."""
        return self.after_one.value

    @property
    def confident_flips_within_two(self) -> float:
        """The share of confident predictions that one or two groups flip; at least this, unless ``early.exact``."""
        return self.early.value


class Tally:
    """The running counts and sums of an audit.

    Each piece is summed on its own and the sums of all pieces are added exactly, so that the result does not depend on
    the order of the pieces.
    """

    def __init__(
        self,
        protocol: Protocol,
        declared: LatticeDeclaration | None = None,
        min_confidence: float = CONFIDENT,
        labels: Mapping[Any, Any] | None = None,
    ) -> None:
        self.protocol, self.declared, self.min_confidence = protocol, declared, min_confidence
        # Ids read from a file may be 1 where the certificate says "1"; the words are what must agree.
        self.labels = None if labels is None else {str(own_id): label for own_id, label in labels.items()}
        self.thresholds = [f"lambda_{operator}" for operator in protocol.operators]
        self.columns = [*SCORES, "flipped", *self.thresholds]
        if declared is not None:
            self.columns += ["smallest_size", "smallest_state"]
            self.columns += ["failure_probability"] if declared.has_failures else []
        self.columns += [] if labels is None else ["id", "predicted"]
        self._pieces: list[dict[str, float]] = []
        self._losses: list[Floats] = []  # 8 bytes per row, for the median
        self._ids, self._unlabelled = IdSpan(), list[object]()

    def add(self, batch: pa.Table) -> None:
        """Count the rows of a piece, of which ``columns`` are needed."""
        table: pd.DataFrame = batch.select(self.columns).to_pandas()
        confident = table[table["confidence"] >= self.min_confidence]
        bounds = bound_flips(confident, self.protocol, self.declared)
        self._losses.append(batch.column("independent_loss").to_numpy())
        piece = {
            "rows": len(table),
            **{name: _sum(table[name]) for name in SCORES},
            "never_flips": _sum(~table["flipped"]),
            "confident": len(confident),
            **{name: _sum(holds) for name, holds in bounds.list_properties().items()},
            "confident_fds": _sum(confident["fds"]),
            "confident_exposure": _sum(confident["exposure"]),
            **{name: _sum(table[name].isna()) for name in self.thresholds},
        }
        if self.labels is not None:
            ids = table["id"].map(str)
            self._ids.add(table["id"])
            self._unlabelled += table["id"][~ids.isin(self.labels)].tolist()
            right = ids.map(self.labels).astype(str) == table["predicted"].astype(str)
            piece |= {"right": _sum(right), "confident_right": _sum(right[confident.index])}
        if "smallest_size" in table:
            size, state = table["smallest_size"], table["smallest_state"]
            piece |= {
                "searched": _sum(state != NOT_SEARCHED),
                "fewer_suffice": _sum(table["flipped"] & (size < table["flip_budget"])),
                "path_missed": _sum(~table["flipped"] & size.notna()),
                "never_fails": _sum(state == NONE_AT_ALL),
                "unsettled": _sum(state.isin((UPPER_BOUND, UNDECIDED))),
                "with_a_set": _sum(size.notna()),
                "sizes": _sum(size.dropna()),
            }
        if "failure_probability" in table:
            piece["decisions_lost"] = _sum(table["failure_probability"])
        self._pieces.append(piece)

    def total(self, name: str) -> float:
        """Return one of the sums over all pieces."""
        return math.fsum(piece[name] for piece in self._pieces)

    def count(self, name: str) -> int:
        """Return one of the counts over all pieces."""
        return int(self.total(name))

    def share(self, name: str) -> Share:
        """Return the share of confident predictions that flip after one group, flip early or hold, as far as known."""
        return read_share(name, {each: self.total(each) for each in FLIP_COUNTS}, self.count("confident"))

    def summary(self) -> AuditSummary:
        """Return means and shares; refuse labels that do not cover every row."""
        rows, confident = self.count("rows"), self.count("confident")
        if not rows:
            raise CertificateError("there are no certificates to summarise")
        if self.labels is not None and self._unlabelled:
            missing = self._unlabelled
            raise DataError(*say_unlabelled(len(missing), rows, missing[0], self._ids, IdSpan(self.labels)))

        def mean(name: str, count: int = rows) -> float:
            return self.total(name) / count if count else float("nan")

        optional: dict[str, Any] = {}
        if self.labels is not None:
            optional |= {"accuracy": mean("right"), "confident_accuracy": mean("confident_right", confident)}
        if "smallest_size" in self.columns:
            optional |= {name: self.count(name) for name in LATTICE_COUNTS}
            optional["mean_smallest_size"] = mean("sizes", self.count("with_a_set"))
        if "failure_probability" in self.columns:
            optional |= {
                "decisions_lost": self.total("decisions_lost"),
                "mean_failure_probability": mean("decisions_lost"),
            }
        means: dict[str, Any] = {f"mean_{name}": mean(name) for name in SCORES}
        return AuditSummary(
            rows=rows,
            min_confidence=self.min_confidence,
            **means,
            median_independent_loss=float(np.median(np.concatenate(self._losses))),
            share_never_flips=mean("never_flips"),
            confident=confident,
            after_one=self.share("after_one"),
            early=self.share("early"),
            holds=self.share("holds"),
            early_on_path=self.count("early_on_path"),
            confident_mean_fds=mean("confident_fds", confident),
            confident_mean_exposure=mean("confident_exposure", confident),
            no_flip_under={name.removeprefix("lambda_"): mean(name) for name in self.thresholds},
            **optional,
        )


def _sum(values: pd.Series | Booleans) -> float:
    return float(np.sum(np.asarray(values, dtype=np.float64)))
