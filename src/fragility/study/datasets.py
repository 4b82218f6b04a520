"""The seven benchmark data sets of the study: declarations, loading, verification and splits.

A :class:`DatasetSpec` declares everything the study needs to know about one data set before any row is read:
target and class order, nominal fields, the columns that together are one raw field, the markers that stand for
an unavailable field, the domain evidence blocks, the row count and two digests. Nothing is inferred from values.

Rows come from one of three places, in this order: a folder (``data`` argument or ``FRAGILITY_DATA``), the copy
bundled with the package (Credit-G only), or OpenML through :func:`download`. Whatever the place, the rows are
checked against the declared digest before they are used.

Splits are 60/20/20, stratified by class, decided by the seed alone. The three parts are disjoint; everything
that is fitted (preprocessing, baseline, calibration, normalisation) sees the training or validation part only.
"""

from __future__ import annotations

import hashlib
import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split

from fragility.bundled import load_credit_g
from fragility.errors import DataError

OPENML = "https://www.openml.org"
DATA_VARIABLE = "FRAGILITY_DATA"


@dataclass(frozen=True, slots=True)
class DatasetSpec:
    """What is declared about one data set, before any row is read.

    ``collapse`` names indicator columns that together are one nominal raw field: ``(field, prefix)`` turns the
    columns ``prefix1, prefix2, ...`` into the field with the number of the column that holds 1.
    ``markers`` lists, for a field, the values that stand for "not available".
    ``blocks`` is the domain grouping: every field is in exactly one block.
    """

    name: str
    title: str
    rows: int
    columns: int
    file_sha256: str
    content_sha256: str
    target: str
    classes: tuple[str, ...]
    fields: tuple[str, ...]
    nominal: tuple[str, ...]
    blocks: tuple[tuple[str, tuple[str, ...]], ...]
    markers: tuple[tuple[str, tuple[str | int, ...]], ...] = ()
    drop: tuple[str, ...] = ()
    collapse: tuple[tuple[str, str], ...] = ()
    train_cap: int | None = None
    openml_id: int | None = None
    openml_columns: tuple[str, ...] = ()
    openml_classes: tuple[str, ...] = ()
    openml_note: str = ""
    licence: str = ""

    def __post_init__(self) -> None:
        blocked = [field for _, fields in self.blocks for field in fields]
        if sorted(blocked) != sorted(self.fields):
            odd = sorted(set(blocked) ^ set(self.fields)) or "a field twice"
            raise DataError(f"the domain blocks of {self.name!r} must hold every field once; look at {odd}")
        for label, names in (("nominal", self.nominal), ("markers", [field for field, _ in self.markers])):
            unknown = sorted(set(names) - set(self.fields))
            if unknown:
                raise DataError(f"{label} of {self.name!r} names unknown fields {unknown}")

    @property
    def numeric(self) -> tuple[str, ...]:
        return tuple(field for field in self.fields if field not in self.nominal)

    @property
    def block_of(self) -> dict[str, str]:
        """Field -> domain block."""
        return {field: block for block, fields in self.blocks for field in fields}


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _blocks(**blocks: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple((name, _names(fields)) for name, fields in blocks.items())


_ADULT_FIELDS = _names(
    "age workclass fnlwgt education education-num marital-status occupation relationship race sex "
    "capital-gain capital-loss hours-per-week native-country"
)
_BANK_FIELDS = _names(
    "age job marital education default balance housing loan contact day month duration campaign pdays previous poutcome"
)
_CREDIT_FIELDS = _names(
    "checking_status duration credit_history purpose credit_amount savings_status employment "
    "installment_commitment personal_status other_parties residence_since property_magnitude age "
    "other_payment_plans housing existing_credits job num_dependents own_telephone foreign_worker"
)
_DEFAULT_FIELDS = _names(
    "LIMIT_BAL SEX EDUCATION MARRIAGE AGE PAY_0 PAY_2 PAY_3 PAY_4 PAY_5 PAY_6 BILL_AMT1 BILL_AMT2 BILL_AMT3 "
    "BILL_AMT4 BILL_AMT5 BILL_AMT6 PAY_AMT1 PAY_AMT2 PAY_AMT3 PAY_AMT4 PAY_AMT5 PAY_AMT6"
)
_ELECTRICITY_FIELDS = _names("date day period nswprice nswdemand vicprice vicdemand transfer")
_HELOC_FIELDS = _names(
    "ExternalRiskEstimate MSinceOldestTradeOpen MSinceMostRecentTradeOpen AverageMInFile NumSatisfactoryTrades "
    "NumTrades60Ever2DerogPubRec NumTrades90Ever2DerogPubRec PercentTradesNeverDelq MSinceMostRecentDelq "
    "MaxDelq2PublicRecLast12M MaxDelqEver NumTotalTrades NumTradesOpeninLast12M PercentInstallTrades "
    "MSinceMostRecentInqexcl7days NumInqLast6M NumInqLast6Mexcl7days NetFractionRevolvingBurden "
    "NetFractionInstallBurden NumRevolvingTradesWBalance NumInstallTradesWBalance "
    "NumBank2NatlTradesWHighUtilization PercentTradesWBalance"
)
_COVERTYPE_NUMERIC = _names(
    "Elevation Aspect Slope Horizontal_Distance_To_Hydrology Vertical_Distance_To_Hydrology "
    "Horizontal_Distance_To_Roadways Hillshade_9am Hillshade_Noon Hillshade_3pm "
    "Horizontal_Distance_To_Fire_Points"
)
_COVERTYPE_COLUMNS = (
    *_COVERTYPE_NUMERIC,
    *(f"Wilderness_Area{i}" for i in range(1, 5)),
    *(f"Soil_Type{i}" for i in range(1, 41)),
)

ADULT = DatasetSpec(
    name="adult",
    title="Adult",
    rows=48_842,
    columns=15,
    file_sha256="b31e580d8a80ae8f4869277120a254bd55bfc3e5d1d0c72dd39d8f6a115bc032",
    content_sha256="a1716b3dbf9dce9e21803e423cef8433fb9af87839e22ba29361e0f83077a793",
    target="income",
    classes=("<=50K", ">50K"),
    fields=_ADULT_FIELDS,
    nominal=(
        "workclass",
        "education",
        "marital-status",
        "occupation",
        "relationship",
        "race",
        "sex",
        "native-country",
    ),
    blocks=_blocks(
        person="age race sex native-country",
        household="marital-status relationship",
        schooling="education education-num",
        work="workclass occupation hours-per-week",
        capital="capital-gain capital-loss",
        survey="fnlwgt",
    ),
    markers=(
        ("workclass", ("?",)),
        ("occupation", ("?",)),
        ("native-country", ("?",)),
        ("capital-gain", (99_999,)),
    ),
    openml_id=1590,
    openml_columns=(*_ADULT_FIELDS, "class"),
    licence="UCI 2, CC BY 4.0",
)

BANK = DatasetSpec(
    name="bank_marketing",
    title="Bank",
    rows=45_211,
    columns=17,
    file_sha256="4e40411e2f47ef30badedea6e0fd595c36bb63937eb0ce8848e2a292206b46e6",
    content_sha256="20ae2ce5ec66d12a5c4d73dbb8d1dd42e7160877047970247e88909e98a3f3e9",
    target="y",
    classes=("no", "yes"),
    fields=_BANK_FIELDS,
    nominal=("job", "marital", "education", "default", "housing", "loan", "contact", "month", "poutcome"),
    blocks=_blocks(
        client="age job marital education",
        finances="default balance housing loan",
        last_contact="contact day month duration",
        history="campaign pdays previous poutcome",
    ),
    markers=(
        ("job", ("unknown",)),
        ("education", ("unknown",)),
        ("contact", ("unknown",)),
        ("poutcome", ("unknown",)),
        ("pdays", (-1,)),
    ),
    openml_id=1461,
    openml_columns=(*(f"V{i}" for i in range(1, 17)), "Class"),
    openml_classes=("1", "2"),
    licence="UCI 222, CC BY 4.0",
)

CREDIT_G = DatasetSpec(
    name="credit_g",
    title="Credit-G",
    rows=1_000,
    columns=21,
    file_sha256="a4c6f98b774aecbb6c7a8ec6bd0d33b1e81c1da126912037bdfeb1ae8a1bcf3d",
    content_sha256="4d3a4dc6a5a24764169142fb5d818c3c1a0aebc66f0138641433694634105c6e",
    target="class",
    classes=("bad", "good"),
    fields=_CREDIT_FIELDS,
    nominal=(
        "checking_status",
        "credit_history",
        "purpose",
        "savings_status",
        "employment",
        "personal_status",
        "other_parties",
        "property_magnitude",
        "other_payment_plans",
        "housing",
        "job",
        "own_telephone",
        "foreign_worker",
    ),
    blocks=_blocks(
        accounts="checking_status savings_status",
        loan="duration purpose credit_amount installment_commitment other_parties",
        history="credit_history existing_credits other_payment_plans",
        work="employment job",
        person="personal_status age num_dependents own_telephone foreign_worker",
        property="residence_since property_magnitude housing",
    ),
    markers=(
        ("checking_status", ("no checking",)),
        ("savings_status", ("no known savings",)),
        ("property_magnitude", ("no known property",)),
    ),
    openml_id=31,
    openml_columns=(*_CREDIT_FIELDS, "class"),
    licence="UCI 144 Statlog German Credit, CC BY 4.0",
)

DEFAULT_CREDIT = DatasetSpec(
    name="default_credit",
    title="Default",
    rows=30_000,
    columns=25,
    file_sha256="da1b4f0e4a4bc2fefb7deba848066e3531b34bf263d8e1b0bd24f46494460dbb",
    content_sha256="d39f412131002346af5b4303bc4b1729b4ba72bd2f39cb6cccd042a90fec016c",
    target="default payment next month",
    classes=("0", "1"),
    fields=_DEFAULT_FIELDS,
    nominal=("SEX", "EDUCATION", "MARRIAGE"),
    blocks=_blocks(
        limit="LIMIT_BAL",
        person="SEX EDUCATION MARRIAGE AGE",
        repayment="PAY_0 PAY_2 PAY_3 PAY_4 PAY_5 PAY_6",
        bills="BILL_AMT1 BILL_AMT2 BILL_AMT3 BILL_AMT4 BILL_AMT5 BILL_AMT6",
        payments="PAY_AMT1 PAY_AMT2 PAY_AMT3 PAY_AMT4 PAY_AMT5 PAY_AMT6",
    ),
    markers=(
        ("EDUCATION", (0, 5, 6)),
        ("MARRIAGE", (0,)),
        *((field, (-2,)) for field in _names("PAY_0 PAY_2 PAY_3 PAY_4 PAY_5 PAY_6")),
    ),
    drop=("ID",),
    openml_id=42_477,
    openml_columns=(*(f"x{i}" for i in range(1, 24)), "y"),
    licence="UCI 350, CC BY 4.0",
)

ELECTRICITY = DatasetSpec(
    name="electricity",
    title="Electricity",
    rows=45_312,
    columns=9,
    file_sha256="8d9bb737aa98dfe064a59a02ec7cd522921a255860ff5e3750fb090b4afa5737",
    content_sha256="2ef1c0a419c54b77a0efb9a38b0795ccbedfd0210fe79a7ddbe2621cdacd633f",
    target="class",
    classes=("DOWN", "UP"),
    fields=_ELECTRICITY_FIELDS,
    nominal=("day",),
    blocks=_blocks(
        calendar="date day period",
        new_south_wales="nswprice nswdemand",
        victoria="vicprice vicdemand",
        transfer="transfer",
    ),
    openml_id=151,
    openml_columns=(*_ELECTRICITY_FIELDS, "class"),
    licence="Harries 1999, MOA elecNormNew; no formal licence found",
)

HELOC = DatasetSpec(
    name="heloc",
    title="HELOC",
    rows=10_459,
    columns=24,
    file_sha256="3b722b2349e6db5677f0ba68edf5895b67fa45fff0a236d18ed23cfe0e069f81",
    content_sha256="f92c04a87f0d1e1298f49d11ded41c43876b25403672ead49200ba44fc9f1a79",
    target="RiskPerformance",
    classes=("Bad", "Good"),
    fields=_HELOC_FIELDS,
    nominal=(),
    blocks=_blocks(
        bureau_score="ExternalRiskEstimate",
        file_age="MSinceOldestTradeOpen MSinceMostRecentTradeOpen AverageMInFile",
        trades="NumSatisfactoryTrades NumTotalTrades NumTradesOpeninLast12M PercentInstallTrades",
        delinquency=(
            "NumTrades60Ever2DerogPubRec NumTrades90Ever2DerogPubRec PercentTradesNeverDelq "
            "MSinceMostRecentDelq MaxDelq2PublicRecLast12M MaxDelqEver"
        ),
        inquiries="MSinceMostRecentInqexcl7days NumInqLast6M NumInqLast6Mexcl7days",
        balances=(
            "NetFractionRevolvingBurden NetFractionInstallBurden NumRevolvingTradesWBalance "
            "NumInstallTradesWBalance NumBank2NatlTradesWHighUtilization PercentTradesWBalance"
        ),
    ),
    markers=tuple((field, (-9, -8, -7)) for field in _HELOC_FIELDS),
    openml_note="the FICO challenge file is not on OpenML in its original form",
    licence="FICO challenge; redistribution not established",
)

COVERTYPE = DatasetSpec(
    name="covertype",
    title="Covertype",
    rows=581_012,
    columns=55,
    file_sha256="65d77a97a5e31e01f9c8349116205709da1e7c9f7dc049651dfb749cbd8918b6",
    content_sha256="1d1a52c2c7c75d8fb6ec575a5505472aa0dd1990314362b248cdc1a31cb09fd6",
    target="Cover_Type",
    classes=("1", "2", "3", "4", "5", "6", "7"),
    fields=(*_COVERTYPE_NUMERIC, "Wilderness_Area", "Soil_Type"),
    nominal=("Wilderness_Area", "Soil_Type"),
    blocks=_blocks(
        terrain="Elevation Aspect Slope",
        water="Horizontal_Distance_To_Hydrology Vertical_Distance_To_Hydrology",
        access="Horizontal_Distance_To_Roadways Horizontal_Distance_To_Fire_Points",
        light="Hillshade_9am Hillshade_Noon Hillshade_3pm",
        area="Wilderness_Area",
        soil="Soil_Type",
    ),
    collapse=(("Wilderness_Area", "Wilderness_Area"), ("Soil_Type", "Soil_Type")),
    train_cap=100_000,
    openml_id=1596,
    openml_columns=(*_COVERTYPE_COLUMNS, "class"),
    licence="UCI 31, CC BY 4.0; copyright Jock A. Blackard and Colorado State University",
)

DATASETS: Mapping[str, DatasetSpec] = {
    spec.name: spec for spec in (ADULT, BANK, CREDIT_G, DEFAULT_CREDIT, ELECTRICITY, HELOC, COVERTYPE)
}


def dataset_spec(name: str) -> DatasetSpec:
    """The declaration of one data set, by name."""
    try:
        return DATASETS[name]
    except KeyError:
        raise DataError(f"unknown data set {name!r}; expected one of {', '.join(DATASETS)}") from None


# ------------------------------------------------------------------ digests


def file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def content_digest(frame: pd.DataFrame) -> str:
    """Digest of the rows in their order, independent of file format and integer width.

    The order counts because the splits are decided by row position. Numbers enter as float64; text enters as its
    rank among the sorted distinct values, which are hashed too.
    """
    header: list[object] = []
    columns = np.empty((frame.shape[1], len(frame)))
    for position, name in enumerate(frame.columns):
        column = frame[name]
        if pd.api.types.is_numeric_dtype(column):
            columns[position] = column.to_numpy(dtype=np.float64)
            header.append([str(name), "number"])
        else:
            values, codes = np.unique(column.astype(str).to_numpy(dtype=object), return_inverse=True)
            columns[position] = codes
            header.append([str(name), [str(value) for value in values]])
    digest = hashlib.sha256(json.dumps(header, ensure_ascii=True, separators=(",", ":")).encode())
    digest.update(np.ascontiguousarray(columns.T + 0.0, dtype="<f8").tobytes())
    return digest.hexdigest()


def verify_rows(spec: DatasetSpec, frame: pd.DataFrame, source: str) -> None:
    """Refuse rows that are not the declared ones."""
    if frame.shape != (spec.rows, spec.columns):
        raise DataError(
            f"{spec.name!r} from {source} must have {spec.rows} rows and {spec.columns} columns, "
            f"got {frame.shape[0]} and {frame.shape[1]}; fetch the complete original"
        )
    found = content_digest(frame)
    if found != spec.content_sha256:
        raise DataError(
            f"{spec.name!r} from {source} has content digest {found}, expected {spec.content_sha256}; "
            "its values are not those the study was run on"
        )


# ------------------------------------------------------------------ loading


def data_folder(data: str | Path | None = None) -> Path | None:
    """The folder to look in: the argument, else ``FRAGILITY_DATA``, else none."""
    chosen = data if data is not None else os.environ.get(DATA_VARIABLE)
    return Path(chosen) if chosen else None


def load_table(name: str, *, data: str | Path | None = None) -> pd.DataFrame:
    """The complete original table, verified: from the folder, else the bundled copy (Credit-G)."""
    spec = dataset_spec(name)
    folder = data_folder(data)
    if folder is not None and (folder / f"{name}.parquet").is_file():
        path = folder / f"{name}.parquet"
        frame = pd.read_parquet(path)
        if file_digest(path) != spec.file_sha256:
            verify_rows(spec, frame, str(path))
        return frame
    if name == "credit_g":
        fields, target = load_credit_g()
        frame = fields.assign(**{spec.target: target})
        verify_rows(spec, frame, "the bundled copy")
        return frame
    place = f"in {folder}" if folder is not None else f"because {DATA_VARIABLE} is not set"
    raise DataError(
        f"{name}.parquet not found {place}; point --data or {DATA_VARIABLE} at a folder that holds it, "
        f"or fetch it with fragility.study.datasets.download({name!r}, folder)"
    )


@dataclass(frozen=True, slots=True)
class Dataset:
    """Rows ready for the study: raw fields in declared order and the class index of every row."""

    spec: DatasetSpec
    X: pd.DataFrame
    y: np.ndarray
    unavailable: np.ndarray  # (n, fields) bool: the raw value is one of the field's markers

    @property
    def has_markers(self) -> bool:
        return bool(self.unavailable.any())


def load(name: str, *, data: str | Path | None = None) -> Dataset:
    """One data set with raw fields, class indices and the table of unavailable fields."""
    spec = dataset_spec(name)
    return prepare(spec, load_table(name, data=data))


def prepare(spec: DatasetSpec, table: pd.DataFrame) -> Dataset:
    """Row-wise preparation only: drop the row number, collapse indicators, mark unavailable fields."""
    fields = {}
    for field in spec.fields:
        prefix = dict(spec.collapse).get(field)
        column = _collapse(table, prefix) if prefix else table[field]
        fields[field] = _typed(column, field in spec.nominal)
    X = pd.DataFrame(fields, index=pd.RangeIndex(len(table)))
    y = pd.Categorical(table[spec.target].astype(str), categories=list(spec.classes)).codes
    if (y < 0).any():
        raise DataError(f"target {spec.target!r} of {spec.name!r} holds values outside {spec.classes}")
    return Dataset(spec=spec, X=X, y=y.astype(np.int64), unavailable=_unavailable(spec, X))


def _typed(column: pd.Series, nominal: bool) -> np.ndarray:
    if nominal:
        return column.astype(str).to_numpy(dtype=object)
    return column.to_numpy(dtype=np.float64)


def _collapse(table: pd.DataFrame, prefix: str) -> pd.Series:
    names = [name for name in table.columns if name.startswith(prefix)]
    indicators = table[names].to_numpy(dtype=np.int64)
    if (indicators.sum(axis=1) != 1).any():
        raise DataError(f"the columns {prefix}* must hold exactly one 1 in every row")
    numbers = np.array([int(name.removeprefix(prefix)) for name in names])
    return pd.Series(numbers[indicators.argmax(axis=1)])


def _unavailable(spec: DatasetSpec, X: pd.DataFrame) -> np.ndarray:
    found = np.zeros(X.shape, dtype=bool)
    for field, values in spec.markers:
        wanted: Iterable[object] = map(str, values) if field in spec.nominal else map(float, values)
        found[:, spec.fields.index(field)] = X[field].isin(list(wanted)).to_numpy()
    return found


# ------------------------------------------------------------------ splits


@dataclass(frozen=True, slots=True)
class Split:
    """Disjoint row positions of one seed: 60% training, 20% validation, 20% test, stratified by class."""

    seed: int
    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray

    def __post_init__(self) -> None:
        parts = np.concatenate([self.train, self.validation, self.test])
        if len(np.unique(parts)) != len(parts):
            raise DataError(f"the parts of the split for seed {self.seed} must be disjoint")


def split(y: np.ndarray, seed: int, *, train_cap: int | None = None) -> Split:
    """60/20/20 by class. ``train_cap`` thins the training part alone (stratified); the others stay whole."""
    rows = np.arange(len(y))
    train, rest = train_test_split(rows, test_size=0.4, random_state=seed, stratify=y)
    validation, test = train_test_split(rest, test_size=0.5, random_state=seed, stratify=y[rest])
    if train_cap is not None and len(train) > train_cap:
        train, _ = train_test_split(train, train_size=train_cap, random_state=seed, stratify=y[train])
    return Split(seed=seed, train=np.sort(train), validation=np.sort(validation), test=np.sort(test))


# ------------------------------------------------------------------ OpenML


def download(name: str, folder: str | Path, *, server: str = OPENML, timeout: float = 60.0) -> Path:
    """Fetch one data set from OpenML, verify it, and write ``folder/name.parquet``.

    Three checks, in this order: the MD5 that OpenML states for its file, the declared row and column count, and
    the declared content digest. A copy that fails one is not written.
    """
    spec = dataset_spec(name)
    if spec.openml_id is None:
        raise DataError(f"{name!r} cannot be downloaded: {spec.openml_note}; put {name}.parquet in the data folder")
    description = _description(spec, server, timeout)
    payload = _fetch(str(description["url"]), timeout)
    stated = str(description.get("md5_checksum", ""))
    found = hashlib.md5(payload, usedforsecurity=False).hexdigest()
    if stated and stated != found:
        raise DataError(f"{name!r} from {description['url']}: OpenML states MD5 {stated}, received {found}")
    table = original_table(spec, parse_arff(payload.decode("utf-8")))
    verify_rows(spec, table, f"OpenML data set {spec.openml_id}")
    target = Path(folder) / f"{name}.parquet"
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(".partial")
    table.to_parquet(partial, index=False)
    partial.replace(target)
    return target


def _description(spec: DatasetSpec, server: str, timeout: float) -> dict[str, object]:
    address = f"{server}/api/v1/json/data/{spec.openml_id}"
    try:
        return dict(json.loads(_fetch(address, timeout))["data_set_description"])
    except (ValueError, KeyError) as error:
        raise DataError(f"{address} did not answer with a data set description: {error}") from error


def _fetch(address: str, timeout: float) -> bytes:
    if not address.startswith(("https://", "http://")):
        raise DataError(f"expected an http address, got {address!r}")
    try:
        with urllib.request.urlopen(address, timeout=timeout) as answer:
            return bytes(answer.read())
    except (urllib.error.URLError, TimeoutError) as error:
        raise DataError(f"could not fetch {address}: {error}; try again or use a local folder") from error


def original_table(spec: DatasetSpec, table: pd.DataFrame) -> pd.DataFrame:
    """OpenML's column names and class codes turned back into those of the original file."""
    if tuple(table.columns) != spec.openml_columns:
        raise DataError(
            f"OpenML data set {spec.openml_id} must have the columns {list(spec.openml_columns)}, "
            f"got {list(table.columns)}"
        )
    names = _COVERTYPE_COLUMNS if spec.collapse else spec.fields
    renamed = table.set_axis([*names, spec.target], axis=1)
    if spec.openml_classes:
        renamed[spec.target] = renamed[spec.target].replace(dict(zip(spec.openml_classes, spec.classes, strict=True)))
    return _original_types(spec, renamed)


def _original_types(spec: DatasetSpec, table: pd.DataFrame) -> pd.DataFrame:
    marker = {field: values[0] for field, values in spec.markers}
    result = {name: np.arange(1, len(table) + 1) for name in spec.drop}
    for name in table.columns:
        column = table[name]
        text = name in spec.nominal and spec.name != "default_credit"
        if text or (name == spec.target and not spec.classes[0].isdigit()):
            result[name] = column.fillna(marker.get(name, "?")).astype(str).to_numpy(dtype=object)
        else:
            result[name] = pd.to_numeric(column).to_numpy()
    ordered = [spec.target, *spec.fields] if spec.name == "heloc" else list(result)
    return pd.DataFrame({name: result[name] for name in ordered})


def parse_arff(text: str) -> pd.DataFrame:
    """A dense ARFF file as a table of text (numeric attributes as float64, ``?`` as missing)."""
    lines = iter(text.splitlines())
    attributes = list(_attributes(lines))
    width = len(attributes)
    rows = [_values(line) for line in lines if line.strip() and not line.lstrip().startswith("%")]
    short = next((number for number, row in enumerate(rows, 1) if len(row) != width), None)
    if short is not None:
        raise DataError(f"ARFF data row {short} has {len(rows[short - 1])} values, expected {width}")
    table = {}
    for position, (name, numeric) in enumerate(attributes):
        column = pd.Series([row[position] for row in rows], dtype=object)
        column = column.where(column != _MISSING, None)
        table[name] = pd.to_numeric(column) if numeric else column
    return pd.DataFrame(table)


_MISSING = "\x00missing"


def _attributes(lines: Iterator[str]) -> Iterator[tuple[str, bool]]:
    for line in lines:
        stripped = line.strip()
        lowered = stripped.lower()
        if lowered.startswith("@data"):
            return
        if lowered.startswith("@attribute"):
            name, kind = _split_attribute(stripped[len("@attribute") :].strip())
            yield name, kind.lower() in ("numeric", "real", "integer")
    raise DataError("the ARFF file has no @data section")


def _split_attribute(declaration: str) -> tuple[str, str]:
    quote = declaration[0]
    if quote in "'\"":
        end = declaration.index(quote, 1)
        return declaration[1:end], declaration[end + 1 :].strip()
    name, _, kind = declaration.partition(" ")
    if not kind:
        name, _, kind = declaration.partition("\t")
    return name.strip(), kind.strip()


def _values(line: str) -> list[str]:
    if "'" not in line and '"' not in line:
        return [_MISSING if value.strip() == "?" else value.strip() for value in line.split(",")]
    values, current, quote, quoted, escaped = [], "", "", False, False
    for character in line.strip():
        if escaped:
            current, escaped = current + character, False
        elif character == "\\" and quote:
            escaped = True
        elif quote:
            quote, current = ("", current) if character == quote else (quote, current + character)
        elif character in "'\"":
            quote, quoted = character, True
        elif character == ",":
            values.append(_finished(current, quoted))
            current, quoted = "", False
        else:
            current += character
    return [*values, _finished(current, quoted)]


def _finished(value: str, quoted: bool) -> str:
    """A quoted value is taken as written; a bare ``?`` is missing."""
    if quoted:
        return value.strip()
    return _MISSING if value.strip() == "?" else value.strip()
