"""The study's preprocessing: the same for every data set and model, fitted on training rows alone."""

from __future__ import annotations

from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from fragility_paper.data.spec import DatasetSpec


def preprocessing(spec: DatasetSpec) -> ColumnTransformer:
    """Median imputation and standardisation for numeric fields, one-hot for nominal ones; unfitted."""
    numeric = Pipeline([("impute", SimpleImputer(strategy="median")), ("scale", StandardScaler())])
    nominal = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    parts = [("numeric", numeric, list(spec.numeric))]
    if spec.nominal:
        parts.append(("nominal", nominal, list(spec.nominal)))
    return ColumnTransformer(parts)


def column_fields(spec: DatasetSpec, fitted: ColumnTransformer) -> tuple[str, ...]:
    """The raw field of every transformed column."""
    fields = list(spec.numeric)
    if spec.nominal:
        encoder = fitted.named_transformers_["nominal"]
        for field, categories in zip(spec.nominal, encoder.categories_, strict=True):
            fields.extend([field] * len(categories))
    return tuple(fields)
