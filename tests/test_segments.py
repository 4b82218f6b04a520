"""Segments of audited rows: against counts made one by one, for any order of rows, any cut into parts, any values."""

from __future__ import annotations

import math
from itertools import product
from statistics import median_low

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from small_audits import FIELDS, InParts, small_audit, whole_numbers

import fragility as fg
from fragility.analysis.segments import (
    MISSING,
    PART_ROWS,
    SegmentShares,
    TableRows,
    adjust_holm,
    compare_with_rest,
    read_by,
    segment_rows,
)
from fragility.base.errors import DataError
from fragility.tables.sources import open_source

ROWS, EIGHTY = 300, small_audit(80)
HOSTILE = ["<b>a</b>", "a:b,c", "x\ny", "\u202eabc", " spaced ", ""]


@pytest.fixture(scope="module")
def certs() -> fg.Certificates:
    return small_audit(ROWS)


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    """The audited rows with columns that the model does not see."""
    rng = np.random.default_rng(5)
    frame = whole_numbers(ROWS, 1)
    frame["shop"] = rng.choice(["north", "south", "west"], ROWS, p=[0.6, 0.3, 0.1])
    frame["years"] = rng.integers(18, 80, ROWS)
    frame["score"] = np.where(rng.random(ROWS) < 0.1, np.nan, rng.normal(size=ROWS))
    frame["town"] = [f"town {i}" for i in rng.integers(0, 40, ROWS)]
    frame["odd"] = rng.choice([*HOSTILE, None], ROWS)
    return frame


def counted(certs: fg.Certificates, names: list[str], min_confidence: float) -> dict[str, tuple]:
    """Slow twin: each certificate on its own, with the segment of its row."""
    found: dict[str, list] = {}
    everything: dict[str, int] = {}
    for cert in certs:
        name = names[int(cert.id)]
        everything[name] = everything.get(name, 0) + 1
        if cert.confidence >= min_confidence:
            found.setdefault(name, []).append(cert)
    told = {}
    for name, rows in everything.items():
        sure = found.get(name, [])
        budgets = [cert.flip_budget if cert.flipped else math.inf for cert in sure]
        middle = median_low(budgets) if sure else math.inf
        mean = sum(cert.exposure for cert in sure) / len(sure) if sure else math.nan
        told[name] = (rows, len(sure), sum(b <= 2 for b in budgets), None if middle == math.inf else middle, mean)
    return told


def as_dict(shares: SegmentShares) -> dict[str, tuple]:
    return {
        one.name: (
            one.everything.rows, one.confident.rows, one.confident.flips_early.count,
            one.confident.median_flip_budget, pytest.approx(one.confident.mean_exposure, abs=1e-8, nan_ok=True),
        )
        for one in shares.segments
    }  # fmt: skip


def test_values_of_text_are_segments_by_frequency(certs, rows) -> None:
    found = fg.share_by(certs, rows, by="shop")
    assert [one.name for one in found.segments] == ["north", "south", "west"]
    assert as_dict(found) == counted(certs, list(rows["shop"]), 0.9)
    share = found.segments[0].confident.flips_early
    assert share.lower < share.value < share.upper


@pytest.mark.parametrize("min_confidence", [0.0, 0.6, 0.95, 1.0])
def test_declared_bands_hold_their_lower_end(certs, rows, min_confidence: float) -> None:
    found = fg.share_by(certs, rows, by="years:25,40,60", min_confidence=min_confidence)

    def band(value: int) -> str:
        ends = ((25, "under 25"), (40, "25 to under 40"), (60, "40 to under 60"))
        return next((name for end, name in ends if value < end), "60 or more")

    assert [one.name for one in found.segments] == ["under 25", "25 to under 40", "40 to under 60", "60 or more"]
    assert as_dict(found) == counted(certs, [band(value) for value in rows["years"]], min_confidence)
    assert as_dict(fg.share_by(certs, rows, {"years": [25, 40, 60]}, min_confidence=min_confidence)) == as_dict(found)


def test_numbers_are_cut_into_bands_of_about_equally_many_rows(certs, rows) -> None:
    for by, bands in (("score", 4), ("score:q3", 3), ({"score": 5}, 5)):
        found = fg.share_by(certs, rows, by)
        *known, missing = found.segments
        assert len(known) == bands and missing.name == MISSING
        assert missing.everything.rows == int(rows["score"].isna().sum())
        sizes = [one.everything.rows for one in known]
        assert max(sizes) - min(sizes) <= 2 and sum(sizes) == ROWS - missing.everything.rows


def test_few_distinct_numbers_are_values_in_rising_order(certs, rows) -> None:
    found = fg.share_by(certs, rows, by="debt")
    assert [one.name for one in found.segments] == [str(value) for value in range(-5, 6)]
    assert as_dict(found) == counted(certs, [f"{value:g}" for value in rows["debt"]], 0.9)
    constant = fg.share_by(certs, rows.assign(one=7.5), by={"one": 4})
    assert [one.name for one in constant.segments] == ["all values"]


def test_many_values_leave_the_most_frequent_and_the_others(certs, rows) -> None:
    found = fg.share_by(certs, rows, by="town")
    names = [one.name for one in found.segments]
    assert len(names) == 13 and names[-1] == "(other: 28 values)"
    counts = rows["town"].value_counts()
    most = sorted(counts.index, key=lambda name: (-counts[name], name))[:12]
    assert names[:-1] == most
    told = [name if name in most else names[-1] for name in rows["town"]]
    assert as_dict(found) == counted(certs, told, 0.9)


def test_any_characters_and_missing_values_are_segments(certs, rows) -> None:
    found = fg.share_by(certs, rows, by="odd")
    told = [MISSING if pd.isna(value) else value or "(empty)" for value in rows["odd"]]
    assert as_dict(found) == counted(certs, told, 0.9)
    assert found.segments[-1].name == MISSING
    nothing = fg.share_by(certs, rows.assign(nothing=None), by="nothing")
    assert [one.name for one in nothing.segments] == [MISSING]


def test_the_order_of_rows_and_other_rows_do_not_matter(certs, rows) -> None:
    plain = fg.share_by(certs, rows, by="years:30,50")
    assert fg.share_by(certs, rows.sample(frac=1, random_state=3), by="years:30,50") == plain
    more = pd.concat([rows.set_axis(range(1000, 1000 + ROWS)), rows])
    assert fg.share_by(certs, more, by="years:30,50") == plain
    assert fg.share_by(InParts(certs, 7), rows, by="years:30,50") == plain
    texts = rows.set_axis([str(own_id) for own_id in rows.index])
    assert fg.share_by(certs, texts, by="years:30,50") == plain
    assert fg.share_by(certs, rows.reset_index(drop=True), by="years:30,50", ids=list(range(ROWS))) == plain


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 90), st.integers(0, 2**32 - 1), st.booleans())
def test_parts_of_any_size_give_the_same_segments(part: int, seed: int, shuffled: bool) -> None:
    certs = EIGHTY
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"a": rng.choice(["x", "y", None], 80), "b": rng.normal(size=80)})
    frame.loc[rng.random(80) < 0.2, "b"] = np.nan
    if shuffled:
        frame = frame.sample(frac=1, random_state=seed % 1000)

    class Cut(TableRows):
        def values(self, names, rows):
            return super().values(names, part)

    by = read_by(["a", "b:q3"], ["a", "b"])
    whole = segment_rows(TableRows.of(frame), by, [certs])[0]
    cut = segment_rows(Cut.of(frame), by, [InParts(certs, 11)])[0]
    for one, other in zip(whole, cut, strict=True):
        assert one.names == other.names and (one.codes == other.codes).all()


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".feather"])
def test_rows_in_files_give_the_same_segments(certs, rows, tmp_path, suffix: str) -> None:
    path = tmp_path / f"rows{suffix}"
    plain = rows.drop(columns="odd").assign(code=[i % 3 if i > 40 else np.nan for i in range(ROWS)])
    if suffix == ".csv":
        plain.to_csv(path, index=False)
    elif suffix == ".parquet":
        plain.to_parquet(path)
    else:
        plain.to_feather(path)
    by = read_by(["shop", "years:30", "score:q3", "code"], plain.columns)
    source = open_source(path)
    (mine,) = segment_rows(TableRows.of(plain), by, [certs])
    (stored,) = segment_rows(source, by, [certs])
    for one, other in zip(mine, stored, strict=True):
        assert one.names == other.names and (one.codes == other.codes).all()
    assert {len(ids) for ids, _ in source.values(["shop"], 100)} == {100} and PART_ROWS > ROWS


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_dates_are_cut_into_bands_of_about_equally_many_rows(certs, rows, zone) -> None:
    days = pd.Series(pd.date_range("2020-01-01", periods=ROWS, tz=zone)).where(lambda column: column.index % 50 > 0)
    found = fg.share_by(certs, rows.assign(since=days), by="since")
    names = [one.name for one in found.segments]
    assert len(names) == 5 and names[-1] == MISSING and names[0].startswith("under 2020-0")
    assert not any(":" in name for name in names)
    sizes = [one.everything.rows for one in found.segments]
    assert sizes[-1] == 6 and max(sizes[:-1]) - min(sizes[:-1]) <= 2
    few = fg.share_by(certs, rows.assign(since=pd.Timestamp("2026-11-16", tz=zone)), by="since")
    assert len(few.segments) == 1
    with pytest.raises(DataError, match=r"holds dates, whose bands cannot be declared by numbers; .* since:q4"):
        fg.share_by(certs, rows.assign(since=days), by="since:1,2")


def test_a_table_for_pandas(certs, rows) -> None:
    table = fg.share_by(certs, rows, by="shop", min_confidence=0.999999).to_pandas()
    assert list(table.columns) == [
        "segment", "rows", "confident", "flips_early", "share", "lower", "upper",
        "standardised", "p_value", "p_within_class", "median_flip_budget", "mean_exposure",
    ]  # fmt: skip
    assert table["rows"].sum() == ROWS and str(table["median_flip_budget"].dtype) == "Int64"


TABLES = st.lists(st.tuples(*[st.integers(0, 12)] * 4), min_size=1, max_size=3)


@given(TABLES)
def test_without_strata_the_test_is_fishers_and_with_them_the_sum_of_hypergeometric_counts(tables) -> None:
    """Slow twin: every way to share out the rows that flip within each stratum, counted one by one."""
    counts = np.array([[[a + b, a], [c + d, c]] for a, b, c, d in tables]).transpose(1, 0, 2)
    found = compare_with_rest(counts, 0)
    chances: dict[int, float] = {0: 1.0}
    for a, b, c, d in tables:
        own = {k: math.comb(a + b, k) * math.comb(c + d, a + c - k) for k in range(a + c + 1)}
        total = sum(own.values())
        further: dict[int, float] = {}
        for (have, chance), (k, ways) in product(chances.items(), own.items()):
            further[have + k] = further.get(have + k, 0.0) + chance * ways / total
        chances = further
    if not any(a + b and c + d for a, b, c, d in tables):
        assert found is None
        return
    seen = chances[sum(a for a, *_ in tables)]
    assert found == pytest.approx(sum(p for p in chances.values() if p <= seen * (1 + 1e-7)), abs=1e-9)
    if len(tables) == 1:
        a, b, c, d = tables[0]
        assert found == pytest.approx(stats.fisher_exact([[a, b], [c, d]]).pvalue, abs=1e-9)


def test_p_values_are_exact_for_many_rows_and_adjusted_for_their_number() -> None:
    counts = np.array([[[60_000, 6_000]], [[40_000, 4_300]]])
    expected = stats.chi2_contingency([[6_000, 54_000], [4_300, 35_700]], correction=False).pvalue
    assert compare_with_rest(counts, 0) == pytest.approx(expected, rel=0.05)
    assert compare_with_rest(np.array([[[5_000, 5_000]], [[5_000, 0]]]), 0) < 1e-300
    assert adjust_holm([0.01, None, 0.04, 0.03]) == pytest.approx([0.03, None, 0.06, 0.06])


def test_a_column_may_have_a_colon_in_its_name() -> None:
    (one,) = read_by("a:1", ["a", "a:1"])
    assert (one.column, one.cuts) == ("a:1", None)
    (one,) = read_by("a:b:1,2", ["a:b"])
    assert (one.column, one.cuts) == ("a:b", (1.0, 2.0))


@pytest.mark.parametrize(
    ("by", "told"),
    [
        ("height", r"by names the column 'height', but the rows have income, debt"),
        ("years:old", r"by must be a column, a column with bands such as age:25,40,60, .* got 'years:old'"),
        ("years:40,25", r"the bands of 'years' must be declared by rising numbers, got \[40.0, 25.0\]"),
        ("years:nan", r"the bands of 'years' must be declared by rising numbers"),
        ("years:q1", r"a column is cut into 2 to 20 bands, got 1 for 'years'"),
        ("shop:1,2", r"bands are for numbers and dates, and the column 'shop' holds '"),
        (["years", "years:30"], r"by names the column 'years' twice"),
        (["years", "shop"], r"share_by takes one column at a time, got 2"),
    ],
)
def test_what_cannot_be_cut_is_refused(certs, rows, by, told: str) -> None:
    with pytest.raises(DataError, match=told):
        fg.share_by(certs, rows, by)


def test_rows_that_were_not_audited_are_refused(certs, rows, tmp_path) -> None:
    with pytest.raises(DataError, match=r"audited rows are not among them \(first: 0; ids of the audit: "):
        fg.share_by(certs, rows.set_axis(range(1, ROWS + 1)), by="shop")
    with pytest.raises(DataError, match=r"segments need rows with named columns, got a sparse matrix"):
        from scipy.sparse import csr_matrix

        fg.share_by(certs, csr_matrix(rows[list(FIELDS)].to_numpy()), by="x0")
    path = tmp_path / "rows.parquet"
    rows.assign(own=range(ROWS)).to_parquet(path)
    with pytest.raises(DataError, match=r"the column 'own' holds the ids, which differ in every row"):
        segment_rows(open_source(path, id_column="own"), read_by("own", ["own"]), [certs])
    with pytest.raises(DataError, match=r"more than 100,000 distinct values"):
        many = pd.DataFrame({"name": [f"n{i}" for i in range(100_001)]})
        segment_rows(TableRows.of(many), read_by("name", ["name"]), [])
