"""Small classifiers converted to ONNX, by the converters that people use."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from sklearn.datasets import make_classification

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
skl2onnx = pytest.importorskip("skl2onnx")
onnxmltools = pytest.importorskip("onnxmltools")

COLUMNS = 6


def make_rows(n_classes: int = 2, n: int = 600) -> tuple[np.ndarray, np.ndarray]:
    """Rows in float32, as the files take them, and their classes."""
    X, y = make_classification(n, COLUMNS, n_informative=4, n_classes=n_classes, random_state=0)
    return X.astype(np.float32), y


def convert(model: Any, path: Path, **options: Any) -> Path:
    """Write a fitted classifier of ``COLUMNS`` columns as an .onnx file."""
    library = type(model).__module__.split(".")[0]
    if library == "catboost":
        model.save_model(str(path), format="onnx")
        return path
    if library in ("lightgbm", "xgboost"):
        from onnxmltools.convert.common.data_types import FloatTensorType

        ask = getattr(onnxmltools, f"convert_{library}")
        proto = ask(model, initial_types=[("X", FloatTensorType([None, COLUMNS]))], **options)
    else:
        proto = convert_pipeline(model, np.zeros((1, COLUMNS), dtype=np.float32), **options)
    onnx.save(proto, str(path))
    return path


def convert_pipeline(model: Any, rows: Any, **options: Any) -> Any:
    """Return what skl2onnx makes of a classifier that takes such rows."""
    with plain_attributes():
        return skl2onnx.to_onnx(model, rows, options=options or None)


@contextmanager
def plain_attributes() -> Any:
    """Let skl2onnx 1.20 convert HistGradientBoosting: it hands over truth values, which protobuf 7 refuses as ints."""
    import skl2onnx.common._container as container

    make = container.make_node

    def number(value: Any) -> Any:
        return int(value) if isinstance(value, (bool, np.bool_, np.integer)) else value

    def make_node(*words: Any, **attributes: Any) -> Any:
        plain = {
            name: [number(each) for each in value] if isinstance(value, list) else number(value)
            for name, value in attributes.items()
        }
        return make(*words, **plain)

    with patch.object(container, "make_node", make_node):
        yield
