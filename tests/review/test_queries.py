"""The queue is what a reader of the whole table would list: every answer is compared with one made from it."""

import json
import secrets
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import workbench as benches
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fragility as fg
from fragility.apps.review.history import case_state, find_undos
from fragility.apps.review.queries import CaseIndex
from fragility.apps.review.rows import to_filterable
from fragility.apps.review.store import Store
from fragility.apps.review.views import PAGE_ROWS, FilterError, View, ViewError
from fragility.audits.manifest import manifest_text
from fragility.base.canonical import digest_bytes
from fragility.base.errors import CertificateError, DataError
from fragility.evidence.replacements import value_text


@pytest.fixture
def table(audited) -> pd.DataFrame:
    """The certificates and the fields of their rows, side by side."""
    frame = audited.certs.to_pandas().assign(place=range(len(audited.certs)))
    frame["failing"] = [list(p[:k]) if f else [] for p, k, f in frame[["path", "flip_budget", "flipped"]].to_numpy()]
    return pd.concat([frame, audited.X.reset_index(drop=True)], axis=1)


def listed(bench, view: View, viewer: str = "Ana") -> list[str]:
    """Every case of a view, over all its pages."""
    bench.cases.catch_up(bench.store)
    found, page = [], 1
    while cases := bench.cases.page(View(**{**vars(view), "page": page}), viewer).cases:
        found += [queued.case.row_id for queued in cases]
        page += 1
    assert len(found) == bench.cases.page(view, viewer).found
    return found


def ranked(table: pd.DataFrame, by: str = "exposure") -> list[str]:
    return table.sort_values([by, "place"], ascending=[False, True])["id"].tolist()


@pytest.mark.samples
@pytest.mark.parametrize("by", ["exposure", "fds"])
@pytest.mark.parametrize("share", [5, 10, 20])
def test_a_budget_keeps_the_top_of_the_confident_cases(bench, table, by, share):
    confident = table[table["confidence"] >= 0.8]
    size = int(np.ceil(share / 100 * len(confident)))
    assert listed(bench, View(by=by, budget=str(share), confident=0.8)) == ranked(confident, by)[:size]


def test_a_budget_of_time_and_no_budget(bench, table):
    confident = table[table["confidence"] >= 0.7]
    assert listed(bench, View(budget="time", hours=0.5, rate=25, confident=0.7)) == ranked(confident)[:12]
    assert listed(bench, View(budget="time", hours=0, confident=0.7)) == []
    assert listed(bench, View(budget="all", confident=0.7)) == ranked(confident)
    assert len(confident) > PAGE_ROWS


@pytest.mark.parametrize(
    ("filters", "holds"),
    [
        ({"label": "bad"}, lambda row: row["predicted"] == "bad"),
        ({"k": "1"}, lambda row: row["flipped"] and row["flip_budget"] == 1),
        ({"k": "4"}, lambda row: row["flipped"] and row["flip_budget"] >= 4),
        ({"k": "none"}, lambda row: not row["flipped"]),
        ({"group": "duration"}, lambda row: "duration" in row["failing"]),
        ({"where": (("duration", "12..24"),)}, lambda row: 12 <= row["duration"] <= 24),
        ({"where": (("duration", "12-24"),)}, lambda row: 12 <= row["duration"] <= 24),
        ({"where": (("duration", "<12"),)}, lambda row: row["duration"] < 12),
        ({"where": (("duration", "> 12"),)}, lambda row: row["duration"] > 12),
        ({"where": (("duration", "6, 24, >=48"),)}, lambda r: r["duration"] in (6, 24) or r["duration"] >= 48),
        ({"where": (("purpose", "new car, used car"),)}, lambda row: row["purpose"] in ("new car", "used car")),
        (
            {"where": (("purpose", "radio/tv"), ("age", "<=30"))},
            lambda r: r["purpose"] == "radio/tv" and r["age"] <= 30,
        ),
        ({"where": (("age", "missing"),)}, lambda row: False),
        ({"where": (("age", ">=40"), ("purpose", "new car"))}, lambda r: r["age"] >= 40 and r["purpose"] == "new car"),
        ({"where": (("age", "35"),)}, lambda row: row["age"] == 35),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_filters(bench, table, filters, holds):
    confident = table[table["confidence"] >= 0.6]
    expected = ranked(confident[[bool(holds(row)) for _, row in confident.iterrows()]])
    assert listed(bench, View(budget="all", confident=0.6, **filters)) == expected


@pytest.mark.parametrize("value", ["' OR TRUE --", "used", "NEW CAR", "new car, boat"])
def test_a_value_that_no_row_has_is_an_error(bench, value):
    with pytest.raises(FilterError, match=r"no row has .* in 'purpose'; it has 'radio/tv', 'new car'"):
        listed(bench, View(where=(("purpose", value),)))


def test_missing_cells_can_be_found(audited, bench):
    fields = bench.rows.to_arrow().to_pandas()
    fields.loc[::3, "age"], fields.loc[::4, "purpose"] = np.nan, None
    fields.loc[1, "purpose"] = "missing"  # a text that says so is shown like a missing cell
    index = CaseIndex.open(audited.folder)
    index.add_fields(pa.Table.from_pandas(fields, preserve_index=False))
    for name, value in (("age", "missing"), ("age", "missing, <30"), ("purpose", "missing, new car")):
        view = View(budget="all", confident=0, sort="id", where=((name, value),))
        column, wanted = fields[name], value.split(", ")[1:]
        extra = (column < 30) if "<30" in wanted else (column == "new car") if wanted else (column == 0)
        expected = fields.index[column.isna() | extra | (column == "missing")].tolist()
        found = [q.case.place for page in range(1, 8) for q in index.page(replace(view, page=page), "Ana").cases]
        assert found == expected and expected
    index.close()


def test_a_number_finds_what_a_page_shows_as_that_number(audited, bench):
    """Pages round to six digits, and columns of 32 bits hold no 0.1."""
    fields = bench.rows.to_arrow().to_pandas()
    share = np.linspace(0, 1, len(fields)) ** 3 + 1 / 3
    single = pd.Series((np.arange(len(fields)) % 10 / 10).astype(np.float32))
    large = 1e6 + np.arange(len(fields)) % 7
    index = CaseIndex.open(audited.folder)
    texts = [value_text(value) for value in share]
    index.add_fields(pa.table({"share": share, "single": to_filterable(single), "large": large}))
    for name, text, expected in (
        ("share", texts[17], [i for i, each in enumerate(texts) if each == texts[17]]),
        ("share", repr(float(share[17])), [17]),
        ("single", "0.1", list(range(1, len(fields), 10))),
        ("single", "<=0.1", [i for i in range(len(fields)) if i % 10 <= 1]),
        ("large", "1000003", [i for i in range(len(fields)) if i % 7 == 3]),
    ):
        view = View(budget="all", confident=0, sort="id", where=((name, text),))
        found = [q.case.place for page in range(1, 8) for q in index.page(replace(view, page=page), "Ana").cases]
        assert found == expected and expected, (name, text)
    index.close()


def test_values_are_offered_as_they_are_shown():
    days = pd.Series(pd.to_datetime(["2020-01-01", None, "2021-05-06 07:08"], format="ISO8601"))
    assert to_filterable(days).to_pylist() == ["2020-01-01", None, "2021-05-06 07:08"]
    mixed = pd.Series([27.0, " a", None, True], dtype=object)
    assert to_filterable(mixed).to_pylist() == ["27", " a", None, "True"]


def test_a_search_by_id_looks_at_all_predictions(bench, table):
    assert listed(bench, View(search="L07")) == ranked(table[table["id"].str.contains("L07")])
    assert listed(bench, View(search="%")) == []


@pytest.mark.samples
@pytest.mark.parametrize("up", [False, True])
@pytest.mark.parametrize(("sort", "column"), [("confidence", "confidence"), ("k", "flip_budget"), ("fds", "fds")])
def test_sorting(bench, table, sort, column, up):
    expected = table.sort_values([column, "place"], ascending=[up, True])["id"].tolist()
    assert listed(bench, View(budget="all", confident=0, sort=sort, up=up)) == expected


def test_ids_rise_by_themselves(bench, table):
    assert listed(bench, View(budget="all", confident=0, sort="id")) == table["id"].tolist()
    assert listed(bench, View(budget="all", confident=0, sort="id", up=True)) == table["id"].tolist()[::-1]


@pytest.mark.parametrize("view", [View(), View(sort="k"), View(sort="id"), View(up=True)])
def test_neighbours_are_those_of_the_list(bench, view):
    cases = bench.cases.page(view, "Ana").cases
    for i, here in enumerate(cases):
        before, after = bench.cases.neighbours(view, "Ana", here)
        assert (before and before.key) == (cases[i - 1].key if i else None)
        assert (after and after.key) == (cases[i + 1].key if i + 1 < len(cases) else None)


def test_similar_cases_are_flipped_by_the_same_groups(bench, table):
    here = next(q for q in bench.cases.page(View(budget="all"), "Ana").cases if len(q.failing) == 2)
    same = table[
        [
            set(f) == set(here.failing) and p == here.label
            for f, p in zip(table["failing"], table["predicted"], strict=True)
        ]
    ]
    expected = [name for name in ranked(same) if name != here.case.row_id]
    cases, total = bench.cases.similar(here)
    assert [q.case.row_id for q in cases] == expected[:8] and total == len(expected)


def test_the_queue_follows_the_rehearsal_of_a_stress(audited, tmp_path):
    ids, certs = audited.certs.table.column("id").to_pylist(), audited.certs
    labels = fg.label_brittle(audited.model, audited.X, certs.protocol, fg.Stress(tau_confidence=0.7))
    labels = labels.to_arrow().set_column(0, "id", [ids])
    score = certs.score("rehearsal", labels=labels)
    with benches.workbench(audited, tmp_path / "a.sqlite", labels=labels) as bench:
        expected = [ids[i] for i in np.argsort(-score, kind="stable")]
        assert listed(bench, View(by="rehearsal", budget="all", confident=0.0)) == expected
        few = listed(bench, View(by="rehearsal", budget="10", confident=0.0))
        assert few == expected[: len(few)] and 0 < len(few) < len(ids)
        page = benches.reviewer(bench, "Ana").get("/queue?by=rehearsal&budget=all").text
        assert "Rehearsal" in page and 'value="rehearsal" selected' in page
    policy = fg.ReviewPolicy.fit(certs, labels, risk=0.3, by="rehearsal", min_confidence=0.7)
    with benches.workbench(audited, tmp_path / "b.sqlite", policy=policy, labels=labels) as bench:
        chosen = set(policy.select(certs, labels=labels).claims.ids)
        assert set(listed(bench, View(budget="policy"))) == chosen
    with pytest.raises(fg.FragilityError, match="no part of certificates"):
        CaseIndex.open(audited.folder, policy)
    with benches.workbench(audited, tmp_path / "c.sqlite") as bench:
        with pytest.raises(ViewError, match="start the workbench with --stress"):
            bench.cases.page(View(by="rehearsal"), "Ana")
        assert 'value="rehearsal"' not in benches.reviewer(bench, "Ana").get("/queue").text


def test_a_policy_is_the_queue_it_selects(audited, tmp_path):
    labels = fg.label_brittle(audited.model, audited.X, audited.certs.protocol, fg.Stress(tau_confidence=0.7))
    ids = audited.certs.table.column("id").to_pylist()
    labels = labels.to_arrow().set_column(0, "id", [ids]) if labels.to_arrow().column_names[0] == "id" else labels
    for segments in (None, "predicted"):
        policy = fg.ReviewPolicy.fit(audited.certs, labels, risk=0.3, segments=segments, min_confidence=0.7)
        expected = [cert.id for cert in policy.select(audited.certs)]
        with benches.workbench(audited, tmp_path / f"{segments}.sqlite", policy=policy) as bench:
            assert listed(bench, View(budget="policy")) == expected
    confident = pc.greater_equal(labels["confidence"], 0.9)
    sure = labels.set_column(labels.column_names.index("high_confidence"), "high_confidence", confident)
    sure = sure.replace_schema_metadata(None)
    for modes in (True, 30):
        certs = fg.audit(audited.model, audited.X, audited.certs.protocol, ids=ids, lattice=False, modes=modes)
        policy = fg.ReviewPolicy.fit(certs, sure, risk=0.3, by="wrong")
        middle = replace(policy.rule, threshold=float(np.median(certs.modes["wrong"].exposure)))
        policy = replace(policy, rules=(middle,))
        case = replace(audited, folder=certs.save(tmp_path / f"by-{modes}"), certs=certs)
        with benches.workbench(case, tmp_path / f"{modes}.sqlite", policy=policy) as bench:
            assert sorted(listed(bench, View(budget="policy"))) == sorted(policy.select(certs).claims.ids)
    with benches.workbench(audited, tmp_path / "none.sqlite") as bench, pytest.raises(ViewError, match="--policy"):
        bench.cases.page(View(budget="policy"), "Ana")


def test_status_and_reviewer_are_filters_and_progress(bench):
    view = View(budget="all")
    cases = [queued.case for queued in bench.cases.page(view, "Ana").cases]
    bench.store.write(cases[0], "Ana", "accept")
    bench.store.write(cases[1], "Ben", "escalate")
    bench.store.write(cases[2], "Ana", "accept")
    bench.store.write(cases[2], "Ben", "escalate")
    names = [case.row_id for case in cases]
    assert listed(bench, View(budget="all", status="accept")) == [names[0]]
    assert listed(bench, View(budget="all", status="conflict")) == [names[2]]
    assert listed(bench, View(budget="all", reviewer="Ben")) == names[1:3]
    assert listed(bench, View(budget="all", status="open")) == listed(bench, view)[3:]
    assert bench.cases.page(view, "Ana").done == {"accept": 1, "escalate": 1, "conflict": 1}
    bench.store.undo(bench.store.entries(cases[0].digest)[-1].seq, "Ana")
    assert listed(bench, View(budget="all", status="accept")) == []
    assert bench.cases.page(view, "Ana").done == {"escalate": 1, "conflict": 1}


def test_what_a_blind_reviewer_may_not_see_no_filter_tells(bench):
    view = View(budget="all")
    case = bench.cases.page(view, "Ana").cases[0].case
    bench.store.write(case, "Ana", "escalate")
    bench.store.ask_second([case], "Ana")
    assert listed(bench, View(budget="all", status="escalate"), "Ben") == []
    assert listed(bench, View(budget="all", reviewer="Ana"), "Ben") == []
    assert listed(bench, View(budget="all", status="second"), "Ben") == [case.row_id]
    assert bench.cases.page(view, "Ben").done == {"second": 1}
    assert listed(bench, View(budget="all", status="escalate"), "Ana") == [case.row_id]


def test_decisions_follow_their_certificates_to_another_audit_of_the_same_rows(audited, bench, tmp_path):
    case = bench.cases.page(View(), "Ana").cases[0].case
    bench.store.write(case, "Ana", "accept")
    audited.certs.most_fragile(30).save(tmp_path / "some")
    some = CaseIndex.open(tmp_path / "some")
    some.catch_up(bench.store)
    accepted = some.page(View(budget="all", status="accept"), "Ana").cases
    assert [queued.case.row_id for queued in accepted] == [case.row_id] and accepted[0].case.place != case.place
    some.close()


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    acts=st.lists(
        st.tuples(
            st.integers(0, 3),
            st.sampled_from(["Ana", "Ben", "Cleo"]),
            st.sampled_from(["accept", "escalate", "park", "comment", "second", "undo"]),
            st.booleans(),
        ),
        max_size=20,
    )
)
def test_the_index_says_what_case_state_says(audited, tmp_path, acts):
    """Whatever was written, in whatever pieces the index caught up with it."""
    store, index = Store.open(tmp_path / f"{secrets.token_hex(8)}.sqlite"), CaseIndex.open(audited.folder)
    cases = [queued.case for queued in index.page(View(budget="all", confident=0), "Ana").cases[:4]]
    cases[3] = replace(cases[3], audit="sha256:another", place=0)  # decided in another audit that holds the row, too
    for number, reviewer, action, catch_up in acts:
        case, entries = cases[number], store.entries(cases[number].digest)
        own = [e for e in entries if e.reviewer == reviewer and e.action != "undo" and e.seq not in find_undos(entries)]
        if action == "second":
            store.ask_second([case], reviewer)
        elif action == "undo":
            for entry in own[:1]:
                store.undo(entry.seq, reviewer)
        else:
            store.write(case, reviewer, action, note="words")
        if catch_up:
            index.catch_up(store)
    index.catch_up(store)
    rows = index._ask("SELECT c.digest, s.status, s.reviewers, s.second FROM states s JOIN cases c USING (place)")
    found = {digest: state for digest, *state in rows}
    written = {case.digest: case_state(store.entries(case.digest)) for case in cases if store.entries(case.digest)}
    assert len(rows) == len(found) and found == {
        digest: [s.status, list(s.reviewers), s.second] for digest, s in written.items()
    }
    store.close()
    index.close()


def test_two_processes_on_one_store_see_each_other(audited, bench, tmp_path):
    other = Store.open(bench.store.path)
    case = bench.cases.page(View(), "Ana").cases[0].case
    other.write(case, "Ben", "accept")
    assert listed(bench, View(status="accept")) == [case.row_id]
    other.close()


# --- files --------------------------------------------------------------------------------------------------


def copy_of(audited, folder):
    shutil.copytree(audited.folder, folder)
    return folder, next(folder.glob("certificates-*.parquet"))


def part_name(whole: str, number: int, digest: str) -> str:
    """Return a part's name, with its place where the names of parts have one."""
    place = f"{number:05}-" if whole.count("-") == 2 else ""
    return f"certificates-{place}{digest[7:23]}.parquet"


def test_an_audit_in_many_parts_is_one_queue(audited, bench, tmp_path):
    """Parts in the order of the manifest; their names are read from it."""
    folder, whole = copy_of(audited, tmp_path / "parts")
    manifest, rows = json.loads((folder / "manifest.json").read_text()), pq.read_table(whole)
    protocol = {name: digest for name, digest in manifest["files"].items() if name.startswith("protocol")}
    files: dict[str, str] = {}
    for start in range(0, len(rows), 77):
        pq.write_table(rows.slice(start, 77), folder / "part.parquet")
        digest = digest_bytes((folder / "part.parquet").read_bytes())
        name = part_name(whole.name, start // 77, digest)
        (folder / "part.parquet").rename(folder / name)
        files[name] = digest
    whole.unlink()
    (folder / "manifest.json").write_text(manifest_text({**manifest, "files": {**files, **protocol}}))
    parts = CaseIndex.open(folder)
    view = View(budget="all", confident=0)
    assert parts.page(view, "Ana").cases == bench.cases.page(view, "Ana").cases
    for queued in parts.page(view, "Ana").cases[:5]:
        assert parts.certificate_row(queued) == bench.cases.certificate_row(queued)
    parts.close()


def test_changed_or_missing_files_are_refused(audited, tmp_path):
    folder, rows = copy_of(audited, tmp_path / "changed")
    data = rows.read_bytes()
    rows.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    with pytest.raises(CertificateError, match="was changed after it was written"):
        CaseIndex.open(folder)
    rows.unlink()
    with pytest.raises(CertificateError, match="is incomplete"):
        CaseIndex.open(folder)
    (folder / "manifest.json").write_text((folder / "manifest.json").read_text().replace('"rows": 300', '"rows": 299'))
    with pytest.raises(CertificateError, match="its digest is not its own"):
        CaseIndex.open(folder)


def test_a_replaced_audit_is_noticed(audited, tmp_path):
    folder, rows = copy_of(audited, tmp_path / "replaced")
    index = CaseIndex.open(folder)
    case = index.page(View(), "Ana").cases[0]
    rows.unlink()
    with pytest.raises(CertificateError, match="the audit was replaced"):
        index.certificate_row(case)
    index.close()


@pytest.mark.parametrize(
    "key", ["", "0", "0-", "-1-abc", "999999-abc", "0-0000000000000000", "..%2F", "٣-abc", "1e3-a"]
)
def test_an_address_names_one_case_or_none(bench, key):
    with pytest.raises(CertificateError, match="no case"):
        bench.cases.find(key)


# --- the rows themselves --------------------------------------------------------------------------------------


def test_rows_that_were_not_audited_are_refused(audited, bench):
    from fragility.apps.review.rows import match_rows

    ids = audited.certs.table.column("id").to_pylist()
    about = (bench.cases.names(), bench.cases.protocol, bench.cases.manifest)
    changed = audited.X.assign(age=audited.X["age"] + 1)
    with pytest.raises(DataError, match="their values differ"):
        match_rows(changed, ids, *about)
    with pytest.raises(DataError, match="lack the field 'age'"):
        match_rows(audited.X.drop(columns="age"), ids, *about)
    with pytest.raises(DataError, match=r"300 of the 300 audited rows are not among them \(first: 'L0700'"):
        match_rows(audited.X, None, *about)
    shuffled = audited.X.assign(extra=1).sample(frac=1, random_state=0)
    matched = match_rows(shuffled, [ids[i - 700] for i in shuffled.index], *about)
    assert matched.frame.index.tolist() == audited.X.index.tolist()


def test_fields_are_marked_with_their_groups(audited, bench):
    assert bench.rows.groups_of["purpose"] == ("purpose",)
    from fragility.apps.review.rows import groups_of_fields

    blocks = {"money": ["credit_amount", "savings_status"], "time": ["duration", "age", "checking_status", "purpose"]}
    protocol = fg.Protocol.fit(audited.model, audited.X, groups=blocks)
    traced = groups_of_fields(protocol, fg.Model.wrap(audited.model))
    assert traced["savings_status"] == traced["credit_amount"] == ("money",) and traced["age"] == ("time",)
    assert groups_of_fields(protocol)["savings_status"] == ("money",)  # the protocol says which fields a column is of


def test_a_mistyped_row_is_refused_without_reading_every_id(bench, monkeypatch):
    first = bench.cases.names()[:3]
    monkeypatch.setattr(CaseIndex, "names", lambda self: pytest.fail("every id was read"))
    with pytest.raises(CertificateError) as refused:
        bench.cases.find_row("L07031")
    assert str(refused.value) == f"this audit has no row 'L07031'; ids run like {first}"
