"""The seven data sets, declared; nothing about them is inferred from values."""

from __future__ import annotations

from collections.abc import Mapping

from fragility.base.errors import DataError
from fragility_paper.data.spec import DatasetSpec, blocks, names

_ADULT_FIELDS = names(
    "age workclass fnlwgt education education-num marital-status occupation relationship race sex "
    "capital-gain capital-loss hours-per-week native-country"
)
_BANK_FIELDS = names(
    "age job marital education default balance housing loan contact day month duration campaign pdays previous poutcome"
)
_CREDIT_FIELDS = names(
    "checking_status duration credit_history purpose credit_amount savings_status employment "
    "installment_commitment personal_status other_parties residence_since property_magnitude age "
    "other_payment_plans housing existing_credits job num_dependents own_telephone foreign_worker"
)
_DEFAULT_FIELDS = names(
    "LIMIT_BAL SEX EDUCATION MARRIAGE AGE PAY_0 PAY_2 PAY_3 PAY_4 PAY_5 PAY_6 BILL_AMT1 BILL_AMT2 BILL_AMT3 "
    "BILL_AMT4 BILL_AMT5 BILL_AMT6 PAY_AMT1 PAY_AMT2 PAY_AMT3 PAY_AMT4 PAY_AMT5 PAY_AMT6"
)
_ELECTRICITY_FIELDS = names("date day period nswprice nswdemand vicprice vicdemand transfer")
_HELOC_FIELDS = names(
    "ExternalRiskEstimate MSinceOldestTradeOpen MSinceMostRecentTradeOpen AverageMInFile NumSatisfactoryTrades "
    "NumTrades60Ever2DerogPubRec NumTrades90Ever2DerogPubRec PercentTradesNeverDelq MSinceMostRecentDelq "
    "MaxDelq2PublicRecLast12M MaxDelqEver NumTotalTrades NumTradesOpeninLast12M PercentInstallTrades "
    "MSinceMostRecentInqexcl7days NumInqLast6M NumInqLast6Mexcl7days NetFractionRevolvingBurden "
    "NetFractionInstallBurden NumRevolvingTradesWBalance NumInstallTradesWBalance "
    "NumBank2NatlTradesWHighUtilization PercentTradesWBalance"
)
_COVERTYPE_NUMERIC = names(
    "Elevation Aspect Slope Horizontal_Distance_To_Hydrology Vertical_Distance_To_Hydrology "
    "Horizontal_Distance_To_Roadways Hillshade_9am Hillshade_Noon Hillshade_3pm "
    "Horizontal_Distance_To_Fire_Points"
)
COVERTYPE_COLUMNS = (
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
    blocks=blocks(
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
    blocks=blocks(
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
    blocks=blocks(
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
    blocks=blocks(
        limit="LIMIT_BAL",
        person="SEX EDUCATION MARRIAGE AGE",
        repayment="PAY_0 PAY_2 PAY_3 PAY_4 PAY_5 PAY_6",
        bills="BILL_AMT1 BILL_AMT2 BILL_AMT3 BILL_AMT4 BILL_AMT5 BILL_AMT6",
        payments="PAY_AMT1 PAY_AMT2 PAY_AMT3 PAY_AMT4 PAY_AMT5 PAY_AMT6",
    ),
    markers=(
        ("EDUCATION", (0, 5, 6)),
        ("MARRIAGE", (0,)),
        *((field, (-2,)) for field in names("PAY_0 PAY_2 PAY_3 PAY_4 PAY_5 PAY_6")),
    ),
    drop=("ID",),
    coded=True,
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
    blocks=blocks(
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
    blocks=blocks(
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
    blocks=blocks(
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
    openml_columns=(*COVERTYPE_COLUMNS, "class"),
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
