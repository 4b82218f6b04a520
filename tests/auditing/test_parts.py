"""Parts made elsewhere: whoever makes them, in whatever order and however often, the folder is the same."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd
import pytest
from clusters import Small, Stopped, content, stop_after

import fragility as fg
from fragility.auditing.parts import Failure, MadePart, PartMaker, Task, limit_threads
from fragility.base.errors import ClusterError, DataError
from fragility.base.ids import SeenIds, id_keys
from fragility.tables.sources import open_source


class Unreliable:
    """Workers that finish in the opposite order, do some parts twice, and get everything by mail."""

    def make_parts(self, maker: PartMaker, tasks: Iterable[Task]) -> Iterator[MadePart | Failure]:
        maker = pickle.loads(pickle.dumps(maker))
        parts = [pickle.loads(pickle.dumps(maker.make(pickle.loads(pickle.dumps(task))))) for task in tasks]
        yield from reversed([*parts[:2], *parts])


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    return Small(tmp_path_factory.mktemp("small"))


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_parts_that_come_twice_and_in_another_order_give_the_same_folder(small, kind, tmp_path):
    file = small.file
    if kind == "csv":
        file = tmp_path / "rows.csv"
        small.rows.to_csv(file, index=False)
        fg.audit_files(small.model, file, small.protocol, tmp_path / "one", **small.options)
    one = small.folder if kind == "parquet" else tmp_path / "one"
    fg.audit_files(small.model, file, small.protocol, tmp_path / "out", workers=Unreliable(), **small.options)
    assert content(tmp_path / "out") == content(one)


@pytest.mark.parametrize("workers", [None, Unreliable()], ids=["here", "workers"])
def test_what_workers_began_anyone_can_go_on_with(small, workers, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(Stopped):
        fg.audit_files(
            small.model, small.file, small.protocol, out, workers=Unreliable(), progress=stop_after(3), **small.options
        )
    assert not (out / "manifest.json").exists()
    fg.audit_files(small.model, small.file, small.protocol, out, workers=workers, resume=True, **small.options)
    assert content(out) == content(small.folder)


def test_workers_refuse_an_input_that_has_changed_since(small, tmp_path):
    out, file = tmp_path / "out", tmp_path / "rows.parquet"
    plain = {"compression": None, "use_dictionary": False, "index": False}  # a swap leaves the size as it is
    small.rows.to_parquet(file, **plain)
    with pytest.raises(Stopped):
        fg.audit_files(
            small.model, file, small.protocol, out, workers=Unreliable(), progress=stop_after(3), **small.options
        )
    swapped = small.rows.copy()
    swapped["age"] = [*small.rows["age"][390:], *small.rows["age"][10:390], *small.rows["age"][:10]]
    swapped.to_parquet(file, **plain)
    with pytest.raises(DataError, match="the input has changed since the audit was interrupted: its rows"):
        fg.audit_files(small.model, file, small.protocol, out, workers=Unreliable(), resume=True, **small.options)


def test_workers_refuse_ids_that_appear_twice(small, tmp_path):
    twice = pd.concat([small.rows] * 4).assign(loan=[f"l{i:04d}" for i in range(4 * len(small.rows))])
    twice.iloc[-1, twice.columns.get_loc("loan")] = "l0003"  # far behind the rows that are looked at first
    twice.to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(DataError, match="ids must be distinct, 'l0003' appears twice"):
        fg.audit_files(
            small.model, tmp_path / "rows.parquet", small.protocol, tmp_path / "out", workers=Unreliable(),
            **small.options,
        )  # fmt: skip


def test_an_error_in_a_worker_says_where_the_row_is(small, tmp_path):
    broken = pd.concat([small.rows.astype({"credit_amount": float})] * 4, ignore_index=True)
    broken["loan"] = range(len(broken))
    broken.iloc[1230, broken.columns.get_loc("credit_amount")] = np.inf
    broken.to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(DataError, match=r"rows 1200 to 1259 of the input: .*credit_amount"):
        fg.audit_files(
            small.model, tmp_path / "rows.parquet", small.protocol, tmp_path / "out", workers=Unreliable(),
            **small.options,
        )  # fmt: skip


def test_a_worker_computes_in_one_thread(monkeypatch):
    monkeypatch.setenv("NUMBA_NUM_THREADS", "4")
    limit_threads()
    assert os.environ["NUMBA_NUM_THREADS"] == os.environ["OMP_NUM_THREADS"] == "1"


def test_keys_of_ids_find_the_row_that_came_before():
    seen = SeenIds()
    assert seen.add_keys(id_keys([1, 2, 3])) is None
    assert seen.add_keys(id_keys([4, "2"])) == 1
    assert seen.add_keys(id_keys([5, 6, 5])) == 2


# --- parts of Parquet files, read from the middle -----------------------------------------------------------


def frames() -> dict[str, pd.DataFrame]:
    n = 101
    plain = pd.DataFrame({"a": np.arange(n) / 7, "whole": pd.array([None if i % 31 == 30 else i for i in range(n)])})
    text = pd.Series(["red", "green", "blue"] * 34)[:n]
    return {
        "plain": plain,
        "moved": plain.set_axis(range(500, 500 + 2 * n, 2)),
        "named": plain.assign(key=[f"k{i}" for i in range(n)]).set_index("key"),
        "categories": plain.assign(colour=text.astype("category"), word=text),
        "no numbers": plain.assign(whole=pd.Series([None if i % 31 == 30 else i for i in range(n)])),
    }


@pytest.mark.samples
@pytest.mark.parametrize("name", frames())
@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize("chosen", [slice(None), slice(5, 83)])
def test_a_part_read_alone_is_the_part_read_in_order(name, files, chosen, tmp_path):
    frame = frames()[name]
    for i, cut in enumerate(np.array_split(np.arange(len(frame)), files)):
        frame.iloc[cut].to_parquet(tmp_path / f"{i}.parquet", row_group_size=13)
    for size in (7, 13, 40, 200):
        source = open_source(tmp_path, rows=chosen)
        whole = list(source.parts(size))
        for place, part in enumerate(whole):
            alone = pickle.loads(pickle.dumps(source)).span(place * size, min(size, source.count - place * size))
            pd.testing.assert_frame_equal(alone.frame.reset_index(drop=True), part.frame.reset_index(drop=True))
            assert (alone.ids, alone.start, alone.numbered) == (part.ids, part.start, part.numbered)


def test_the_error_of_clusters_is_one_of_ours():
    assert issubclass(ClusterError, fg.FragilityError) and ClusterError is ClusterError
