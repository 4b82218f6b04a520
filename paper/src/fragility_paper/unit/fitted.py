"""A trained unit: model, split and protocol, and how its rows are bound and certified."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from sklearn.pipeline import Pipeline

import fragility as fg
from fragility_paper.arrays import Array
from fragility_paper.data import Dataset, Split, split
from fragility_paper.library import BLACKBOX, EvidenceRows, Oracle, bind, choose_oracle, merged_fields
from fragility_paper.models import model_spec
from fragility_paper.plan import Profile, Unit
from fragility_paper.training import train

MERGE_THRESHOLD = 0.8
MERGE_ROWS = 20_000  # training rows on which the association of fields is measured


@dataclass(frozen=True, slots=True, eq=False)
class FittedUnit:
    """A trained model with its protocol; fitted on training rows, early stopping on validation rows."""

    unit: Unit
    data: Dataset
    split: Split
    pipeline: Pipeline
    model: fg.Model  # the pipeline, wrapped once: its fingerprint is computed once
    protocol: fg.Protocol
    engine: str = "auto"

    def rows(self, positions: Array) -> pd.DataFrame:
        return self.data.X.iloc[positions]

    def variant(self, *, baseline: str | None = None, grouping: str = "raw-origin") -> fg.Protocol:
        """The protocol fitted on the training rows with another baseline or grouping, and the same smoothing."""
        own = self.protocol
        return declared_protocol(
            self.unit, self.data, self.split, self.model, baseline or own.baseline, own.smoothing, grouping
        )

    def admitted(self, baseline: str) -> fg.Protocol | None:
        """The protocol with another baseline; None if the model cannot answer for evidence that is lost that way."""
        known = (self.protocol.baseline, *self.protocol.alternatives)
        return self.protocol.with_baseline(baseline) if baseline in known else None

    def probabilities(self, positions: Array) -> Array:
        return self.model.probabilities(self.rows(positions))

    def oracle(self, positions: Array, protocol: fg.Protocol | None = None) -> Oracle:
        """Who answers about the rows as evidence, by the unit's own protocol unless another is given.

        Certificates are not made of these: an audit binds its own rows and checks its engine against the model.
        """
        return choose_oracle(self.asked(positions, protocol), self.predictor)

    def asked(self, positions: Array, protocol: fg.Protocol | None = None) -> EvidenceRows:
        """The rows as evidence, asked of the model itself."""
        return bind(self.model, self.rows(positions), protocol or self.protocol, ids=positions.tolist())

    @property
    def predictor(self) -> str:
        """Whose predictor answers for stressed rows: a model whose engine was named and has none is asked itself."""
        return "auto" if self.engine == "auto" else BLACKBOX

    def certify(
        self, positions: Array, protocol: fg.Protocol | None = None, model: Pipeline | None = None
    ) -> fg.Certificates:
        """Certificates of the rows, by the unit's own protocol and model unless others are given."""
        return fg.audit(
            self.model if model is None else model,
            self.rows(positions),
            protocol or self.protocol,
            ids=positions.tolist(),
            engine=self.engine,
            progress=False,
            lattice=False,
        )


def fit_unit(
    unit: Unit, data: Dataset, profile: Profile, pipeline: Pipeline | None = None, engine: str = "auto"
) -> FittedUnit:
    """Split, train (unless a model trained by the same configuration is given) and declare the protocol."""
    parts = split(data.y, unit.seed, train_cap=profile.rows_to_train(unit.dataset))
    if pipeline is None:
        pipeline = train(model_spec(unit.model), data, parts, device=profile.device)
    model = fg.Model.wrap(pipeline)
    protocol = declared_protocol(unit, data, parts, model, profile.baseline, profile.smoothing)
    return FittedUnit(unit, data, parts, pipeline, model, protocol, engine)


# A protocol is decided by the training rows and the preprocessing, which all models of a split share, and by the votes
# that a model averages, where the default smoothing is asked for: fitted once.
_PROTOCOLS: dict[tuple[object, ...], fg.Protocol] = {}


def declared_protocol(
    unit: Unit,
    data: Dataset,
    parts: Split,
    model: fg.Model,
    baseline: str,
    smoothing: float | None,
    grouping: str = "raw-origin",
) -> fg.Protocol:
    """The protocol of a split; ``grouping`` is raw-origin, domain or merged."""
    votes = model.votes if smoothing is None else None
    key = (unit.dataset, unit.seed, len(parts.train), baseline, smoothing, votes, grouping)
    if key not in _PROTOCOLS:
        _PROTOCOLS[key] = fg.Protocol.fit(
            model,
            data.X.iloc[parts.train],
            baseline="typical" if baseline == "mode" else baseline,  # `mode` is what the paper calls it
            groups=_groups(grouping, data, parts),
            smoothing=smoothing,
        )
    return _PROTOCOLS[key]


def _groups(grouping: str, data: Dataset, parts: Split) -> Any:
    if grouping == "domain":
        return data.spec.block_of
    return merged_blocks(data, parts) if grouping == "merged" else grouping


def merged_blocks(data: Dataset, parts: Split) -> dict[str, str]:
    """Field -> block of strongly associated fields, measured on at most ``MERGE_ROWS`` training rows."""
    kinds: dict[str, Any] = {name: "nominal" if name in data.spec.nominal else "numeric" for name in data.spec.fields}
    train_rows = np.random.default_rng(parts.seed).permutation(parts.train)[:MERGE_ROWS]
    return merged_fields(data.X.iloc[np.sort(train_rows)], kinds, MERGE_THRESHOLD)
