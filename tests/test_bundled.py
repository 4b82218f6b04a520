"""The bundled data are the public originals, with their attribution."""

import hashlib
from importlib.resources import files

from places import REPOSITORY

import fragility as fg


def test_credit_g_is_complete_and_in_original_order():
    X, y = fg.load_credit_g()
    assert X.shape == (1000, 20)
    assert y.value_counts().to_dict() == {"good": 700, "bad": 300}
    assert X.select_dtypes("number").shape[1] == 7
    first = X.iloc[0][["checking_status", "duration", "purpose", "credit_amount"]].tolist()
    assert first == ["<0", 6, "radio/tv", 1169]
    assert (X["checking_status"] == "no checking").sum() == 394


def test_the_file_is_the_one_that_was_published():
    data = files("fragility").joinpath("data", "credit_g.parquet").read_bytes()
    assert hashlib.sha256(data).hexdigest() == "a4c6f98b774aecbb6c7a8ec6bd0d33b1e81c1da126912037bdfeb1ae8a1bcf3d"


def test_attribution_travels_with_the_code():
    notice = (REPOSITORY / "NOTICE").read_text(encoding="utf-8")
    for words in ("Hofmann", "10.24432/C5NC77", "CC BY 4.0"):
        assert words in notice and words in (fg.load_credit_g.__doc__ or "")
