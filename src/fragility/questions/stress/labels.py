"""label_brittle, by the paper's app:threshold_protocol and app:non_circular_labels, with the open choices settled:

    kappa_P(x) = [m(x) - m_P(x)]_+ / (|m(x)| + 1e-8)
    brittle(x) = 1[ p^(x) >= tau_p  and, for at least one stressor P,  flip_P(x)  or  kappa_P(x) >= tau_kappa ]

m is the support margin (pseudo-logit of the class predicted at x minus its best competitor), smoothed as the protocol
declares. A random P needs a rule:

* ``expected`` (default): m_P is the mean support margin over the draws; flip means m_P < 0.
* ``any``: flip (support margin of the unsmoothed probabilities < -resolution) or kappa >= tau in any single draw.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from fragility.base.arrays import DEFAULT_BYTE_BUDGET, Booleans, Floats, Integers, rows_within
from fragility.base.progress import Report, progress_bar
from fragility.base.text import BriefRepr
from fragility.engines.choice import choose_oracle
from fragility.engines.oracle import Oracle
from fragility.engines.trace import TraceStates
from fragility.evidence import EvidenceRows, States
from fragility.evidence.agreement import original_class
from fragility.evidence.rows import input_digests, stacked
from fragility.models.adapter import len_of
from fragility.pages.results import write_table
from fragility.protocol import Protocol, bind
from fragility.questions.stress.declaration import Stress
from fragility.questions.stress.draws import BalancedDraws, Draws, row_keys
from fragility.questions.stress.stressors import Layout
from fragility.scores import EPSILON, REHEARSAL

MOST_DONORS = 4096
STRESS_KEY = "fragility.stress"  # where a table of labels says which stress made them
PROTOCOL_KEY = "fragility.protocol"  # and under which protocol


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class StressRun(BriefRepr):
    """The model's answers under stress, before any threshold; n rows, P stressors, D draws."""

    id: npt.NDArray[Any]  # (n,)
    predicted: Integers  # (n,) class index at x
    confidence: Floats  # (n,) probability of that class at x
    margin: Floats  # (n,) support margin at x
    draw_margin: Floats  # (n, P, D) support margin of that class under each draw
    draw_flip: Booleans  # (n, P, D) whether the draw flips the prediction
    stress: Stress
    protocol: Protocol


def with_donors(
    bound: EvidenceRows, model: Any, X: Any, donors: Any, protocol: Protocol
) -> tuple[EvidenceRows, Floats]:
    """Return the rows and the donor rows as matrices of one coding; donors in the order of their digests.

    Bound together, because a text's code in the raw space is its place among the values of all rows bound.
    """
    n = len(bound)
    both = bind(model, stacked(X, donors), protocol, ids=range(n + len_of(donors)))
    order = np.argsort(input_digests(both.source.take(range(n, len(both)))))[:MOST_DONORS]
    rows = replace(both.take(range(n)), ids=bound.ids, source=bound.source)
    return rows, both.take((n + order).tolist()).dense()


def run_stress_rows(
    oracle: Oracle,
    protocol: Protocol,
    stress: Stress,
    *,
    donors: Floats | None = None,
    rehearsal: bool = False,
    byte_budget: int = DEFAULT_BYTE_BUDGET,
    progress: bool | Report | None = False,
) -> StressRun:
    """Ask about every row of an oracle, stressor and draw; donors (m, d) are in the space of the bound rows.

    rehearsal: whether the draws are those of a rehearsal, balanced and of a stream of their own.
    """
    rows = oracle.rows
    n, drawn = len(rows), (len(rows), len(stress.stressors), stress.draws)
    run = StressRun(
        id=np.fromiter(rows.ids, dtype=object, count=n),
        predicted=np.empty(n, dtype=np.int64),
        confidence=np.empty(n),
        margin=np.empty(n),
        draw_margin=np.empty(drawn),
        draw_flip=np.empty(drawn, dtype=bool),
        stress=stress,
        protocol=protocol,
    )
    layout = Layout.of(protocol, rows, donors)
    chunk = rows_within(byte_budget, rows.width, copies=4 * stress.draws)  # words, masks, the model's own copy
    with progress_bar("stressing", progress) as report:
        for start in range(0, n, chunk):
            part = slice(start, min(start + chunk, n))
            _fill_chunk(run, part, oracle, layout, rehearsal, byte_budget)
            if report is not None:
                report(part.stop, n)
    return run


def rehearse_rows(
    oracle: Oracle,
    protocol: Protocol,
    stress: Stress,
    *,
    donors: Floats | None = None,
    byte_budget: int = DEFAULT_BYTE_BUDGET,
    progress: bool | Report | None = False,
) -> StressRun:
    """Return the declared stress rehearsed, with no more states per row than a certificate asks, but at least a pair.

    The draws share nothing with those of labels, whatever their seeds.
    """
    states = TraceStates.of(protocol, oracle.rows).per_row - 1  # both ask about x
    pairs = max(1, states // len(stress.stressors) // 2)
    return run_stress_rows(
        *(oracle, protocol, replace(stress, draws=2 * pairs)),
        donors=donors,
        rehearsal=True,
        byte_budget=byte_budget,
        progress=progress,
    )


def _fill_chunk(run: StressRun, part: slice, oracle: Oracle, layout: Layout, rehearsal: bool, byte_budget: int) -> None:
    rows, protocol = oracle.rows, run.protocol
    draws: Draws = BalancedDraws(run.stress.draws) if rehearsal else np.arange(run.stress.draws)
    x, spared = rows.dense(part.start, part.stop), rows.spared(part.start, part.stop)
    p = oracle.answer_states(x, States.unmoved(len(x), rows.n_groups), byte_budget)
    predicted = run.predicted[part] = original_class(rows, p, protocol.resolution, part)
    run.confidence[part] = p[np.arange(len(p)), predicted]
    rule = replace(protocol.rule(rows.offset), reading="support")
    run.margin[part] = rule.margin(p, predicted)
    original = np.repeat(predicted, len(draws))
    for index, stressor in enumerate(run.stress.stressors):
        stream = f"{REHEARSAL} {stressor.kind}" if rehearsal else stressor.kind
        keys = row_keys(run.stress.seed, stream, run.id[part])
        drawn = stressor.stress_rows(x, keys, draws, layout)
        if isinstance(drawn, States):
            p = oracle.answer_states(x, drawn.sparing(spared, rows.column_group), byte_budget)
        else:
            copies = drawn if spared is None else np.where(spared.cells[:, None], x[:, None], drawn)
            p = oracle.predict_copies(x, copies)
        run.draw_margin[part, index] = rule.margin(p, original).reshape(len(x), -1)
        run.draw_flip[part, index] = rule.flips(p, original).reshape(len(x), -1)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class BrittleLabels(BriefRepr):
    """Held-out labels, one row per prediction; n rows, P stressors.

    Ranking is judged on the rows where `high_confidence` holds; `brittle` is false outside them.
    """

    id: npt.NDArray[Any]  # (n,)
    predicted: Integers  # (n,) class index at x
    confidence: Floats  # (n,) p^(x)
    margin: Floats  # (n,) m(x)
    high_confidence: Booleans  # (n,) p^(x) >= tau_confidence
    mean_margin: Floats  # (n, P) mean of the support margin over draws
    kappa: Floats  # (n, P) collapse by the rule (of the mean, or the largest over draws)
    flip: Booleans  # (n, P) flip by the rule
    brittle: Booleans  # (n,)
    brittle_rate: Floats  # (n,) share of draws in which some stressor flips or collapses the prediction
    stress: Stress  # names tau_confidence
    run: StressRun
    rehearsed: StressRun | None = None  # the same stress by other draws, which ranks rows and labels none

    def __len__(self) -> int:
        return len(self.id)

    @property
    def min_confidence(self) -> float:
        """Where confident begins: as the stress declares, or else the protocol."""
        least = self.stress.tau_confidence
        return self.run.protocol.min_confidence if least is None else least

    @property
    def statistic(self) -> Floats:
        """(n,) the value that the rule decides by.

        Under ``expected`` the largest collapse of a mean margin over stressors; under ``any`` the share of draws that
        break the row.
        """
        return np.asarray(self.kappa.max(axis=1)) if self.stress.rule == "expected" else self.brittle_rate

    @property
    def rehearsal(self) -> Floats | None:
        """(n,) the statistic of the rule over the rehearsal, a score of the rows; None if there was no rehearsal."""
        return None if self.rehearsed is None else label_rows(self.rehearsed, self.stress).statistic

    @property
    def brittle_by(self) -> Booleans:
        """(n, P) which stressor breaks which row by the rule, confident or not."""
        return self.flip | (self.kappa >= self.stress.tau_collapse)

    def relabel(
        self, *, tau_confidence: float | None = None, tau_collapse: float | None = None, rule: str | None = None
    ) -> BrittleLabels:
        """Return labels by other thresholds or the other rule, from the same draws (no new model calls)."""
        asked = {"tau_confidence": tau_confidence, "tau_collapse": tau_collapse, "rule": rule}
        changes: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
        return label_rows(self.run, replace(self.stress, **changes), self.rehearsed)

    def counts(self) -> dict[str, int]:
        """Return the numbers of rows, high-confidence rows, brittle rows, and brittle rows by stressor."""
        by = (self.brittle_by & self.high_confidence[:, None]).sum(axis=0)
        named = {f"brittle by {name}": int(k) for name, k in zip(self.stress.names, by, strict=True)}
        return {
            "rows": len(self),
            "high-confidence rows": int(self.high_confidence.sum()),
            "brittle rows": int(self.brittle.sum()),
            **named,
        }

    def to_arrow(self) -> pa.Table:
        """Return one row per prediction; per-stressor values in columns named after the stressor."""
        own = ("id", "confidence", "margin", "high_confidence", "brittle", "brittle_rate")
        columns: dict[str, Any] = {name: getattr(self, name) for name in own}
        if (score := self.rehearsal) is not None:
            columns[REHEARSAL] = score
        for index, stressor in enumerate(self.stress.names):
            for name in ("mean_margin", "kappa", "flip"):
                columns[f"{name}_{stressor}"] = getattr(self, name)[:, index]
        table = pa.table({name: pa.array(values) for name, values in columns.items()})
        made_by = {STRESS_KEY: json.dumps(self.stress.to_dict()), PROTOCOL_KEY: self.run.protocol.to_json()}
        return table.replace_schema_metadata(made_by)

    def to_pandas(self) -> pd.DataFrame:
        """Return `to_arrow` as a pandas DataFrame."""
        frame: pd.DataFrame = self.to_arrow().to_pandas()
        return frame

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table as .parquet or .csv."""
        write_table(path, self.to_arrow())


def collapse_under(margin: Floats, stressed: Floats) -> Floats:
    """kappa = [m(x) - m_P(x)]_+ / (|m(x)| + 1e-8), for stressed margins with further trailing axes."""
    m = margin.reshape(margin.shape + (1,) * (stressed.ndim - margin.ndim))
    return np.maximum(m - stressed, 0.0) / (np.abs(m) + EPSILON)


def label_rows(run: StressRun, stress: Stress, rehearsed: StressRun | None = None) -> BrittleLabels:
    """Apply rule and thresholds to a stress run; the cheap half of `label_brittle`.

    The labels name the level at which confident begins, also where the stress leaves it to the protocol.
    """
    least = run.protocol.min_confidence if stress.tau_confidence is None else stress.tau_confidence
    stress = replace(stress, tau_confidence=least)
    mean_margin = run.draw_margin.mean(axis=2)
    draw_kappa = collapse_under(run.margin, run.draw_margin)
    if stress.rule == "expected":
        kappa, flip = collapse_under(run.margin, mean_margin), mean_margin < 0.0
    else:
        kappa, flip = draw_kappa.max(axis=2), run.draw_flip.any(axis=2)
    confident = run.confidence >= least
    broken = (flip | (kappa >= stress.tau_collapse)).any(axis=1)
    broken_draw = (run.draw_flip | (draw_kappa >= stress.tau_collapse)).any(axis=1)
    return BrittleLabels(
        id=run.id,
        predicted=run.predicted,
        confidence=run.confidence,
        margin=run.margin,
        high_confidence=confident,
        mean_margin=mean_margin,
        kappa=kappa,
        flip=flip,
        brittle=confident & broken,
        brittle_rate=broken_draw.mean(axis=1),
        stress=stress,
        run=run,
        rehearsed=rehearsed,
    )


def label_brittle(
    model: Any,
    X: Any,
    protocol: Protocol,
    stress: Stress | None = None,
    *,
    donors: Any = None,
    ids: Any = None,
    rehearsal: bool = True,
    engine: str = "auto",
    byte_budget: int = DEFAULT_BYTE_BUDGET,
    progress: bool | Report | None = None,
) -> BrittleLabels:
    """Say which confident predictions of ``model`` on ``X`` break under held-out stress.

    Parameters
    ----------
    model : estimator, pipeline, booster or Model
        The fitted classifier; whatever :meth:`Model.wrap` takes.
    X : array or table of shape (n, d)
        The raw rows.
    protocol : Protocol
        Whose groups, baseline and decision the stress is measured by; its depth does not matter.
    stress : Stress, optional
        The label channel; by default mask, dropout and noise at 0.3.
    donors : array or table, optional
        Training rows whose values the stressor :class:`Donor` lends; at most 4,096 of them, chosen by their content.
    ids : sequence, optional
        One distinct id per row, as in :func:`audit`; the random numbers of a row depend on its id.
    rehearsal : bool, default=True
        Whether to rehearse the stress as well, by balanced draws that no label sees: the score ``rehearsal`` ranks rows
        by how this stress breaks them. It costs as many states per row as a certificate.
    engine : str, default="auto"
        Whose predictor answers for the stressed rows: ``auto`` takes a native one where the model is known to it.
    byte_budget : int, default=256 MiB
        Bound on the stressed rows held in memory at a time; it changes nothing in the result.
    progress : bool or callable, optional
        A bar on the terminal (the default if there is one), or a function (rows done, rows in all).

    Returns
    -------
    BrittleLabels
        ``brittle``, ``high_confidence`` and ``rehearsal`` row by row, ``counts()``, ``to_pandas()``.

    See Also
    --------
    evaluate : Whether the certificates find these rows.
    Stress : What happens to a row.
    """
    bound, lent = bind(model, X, protocol, ids=ids), None
    if donors is not None:
        bound, lent = with_donors(bound, model, X, donors, protocol)
    oracle, declared = choose_oracle(bound, engine), stress or Stress()
    run = run_stress_rows(oracle, protocol, declared, donors=lent, byte_budget=byte_budget, progress=progress)
    rehearsed = None
    if rehearsal:
        rehearsed = rehearse_rows(oracle, protocol, declared, donors=lent, byte_budget=byte_budget, progress=progress)
    return label_rows(run, declared, rehearsed)
