"""Treelite checkpoints: tree ensembles of any library in one format, predicted by Treelite's own library (GTIL).

A checkpoint says how its sums become probabilities (its postprocessor) but names no classes and no columns. GTIL
answers for it. Its raw scores are taken and the link is applied in float64, since checkpoints made from XGBoost answer
in float32.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Any

import numpy as np

from fragility.base.arrays import Floats, Integers
from fragility.base.errors import ModelError

LINKED = ("sigmoid", "softmax")
AVERAGED = "identity_multiclass"  # of a forest: its leaves hold probabilities


FIELDS = ("num_feature", "num_target", "num_class", "class_id", "average_tree_output", "sigmoid_alpha", "base_scores")


class TreeliteClassifier:
    """A checkpoint as a classifier with the classes 0, 1, ..."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        settings = self.settings
        post, n_outputs = settings["postprocessor"], settings["num_class"]
        averaged = post == AVERAGED and bool(settings["average_tree_output"][0])
        if settings["num_target"][0] != 1 or len(n_outputs) != 1:
            raise ModelError("the Treelite checkpoint has several targets, and a certificate is about one")
        if not (averaged or post in LINKED) or (n_outputs[0] == 1 and post != "sigmoid"):
            raise ModelError(
                f"the Treelite checkpoint ends with {post!r:.40}, which gives no class probabilities; known ends are "
                f"{', '.join(LINKED)}, and {AVERAGED} of averaged trees"
            )
        self.linked = post in LINKED
        self.n_features_in_ = int(settings["num_feature"][0])
        self.classes_: Integers = np.arange(max(int(n_outputs[0]), 2))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("model", "settings")}

    @cached_property
    def model(self) -> Any:
        """Treelite's own object."""
        import treelite

        return treelite.Model.deserialize_bytes(self.data)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """How sums become probabilities, by the names of Treelite's format."""
        header = self.model.get_header_accessor()
        return {"postprocessor": header.get_field("postprocessor")} | {name: header.get_field(name) for name in FIELDS}

    def raw_scores(self, rows: Any) -> Floats:
        """Return raw scores (n,) or (n, C); the sigmoid's factor is applied."""
        from treelite import gtil

        cells = np.ascontiguousarray(np.asarray(rows, dtype=np.float64).astype(self.model.input_type))
        scores = np.asarray(gtil.predict(self.model, cells, pred_margin=True), dtype=np.float64)[:, 0]
        if scores.shape[1] == 1:
            return np.asarray(scores[:, 0] * float(self.settings["sigmoid_alpha"][0]))
        return scores

    def predict_proba(self, rows: Any) -> Floats:
        """Return probabilities (n, C) as GTIL gives them."""
        from treelite import gtil

        cells = np.ascontiguousarray(np.asarray(rows, dtype=np.float64).astype(self.model.input_type))
        p = np.asarray(gtil.predict(self.model, cells), dtype=np.float64)[:, 0]
        return np.column_stack([1.0 - p[:, 0], p[:, 0]]) if p.shape[1] == 1 else p

    def fingerprint(self) -> str:
        """Return the digest of the checkpoint, which decides every answer."""
        return hashlib.sha256(self.data).hexdigest()
