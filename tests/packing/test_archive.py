"""Archives of unknown origin: one form is read, everything else is refused in a sentence before a file is written."""

import zipfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fragility as fg
from fragility.base.errors import CertificateError
from fragility.packing.archive import EPOCH, MODE, list_files, write_archive


def entry(name, **changes):
    made = zipfile.ZipInfo(name, EPOCH)
    made.create_system, made.external_attr = 3, MODE
    for field, value in changes.items():
        setattr(made, field, value)
    return made


def write(path, entries, comment=b"", compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for each, data in entries:
            archive.writestr(each, data)
        archive.comment = comment
    return path


def refuse(path):
    with pytest.raises(CertificateError, match=r"^[^\n]*$") as refusal:
        fg.verify_pack(path)
    return str(refusal.value)


@pytest.mark.parametrize(
    "name",
    ["../evil", "/etc/evil", "a/../../evil", "a\\..\\evil", ".hidden", "a//b", "C:evil", "a/b/c/d/e", "n\u00e4me"],
)
def test_names_that_leave_the_folder_are_refused(tmp_path, name):
    path = write(tmp_path / "x.zip", [(entry(name), b"x")])
    assert "whose name is not valid in a pack" in refuse(path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.zip"]


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_twice_is_refused(tmp_path):
    path = write(tmp_path / "x.zip", [(entry("pack.json"), b"1"), (entry("pack.json"), b"2")])
    assert refuse(path).endswith("x.zip contains 'pack.json' twice")


def test_an_archive_without_a_pack_is_called_by_its_own_name(tmp_path):
    path = write(tmp_path / "x.zip", [])
    assert refuse(path) == f"{path} is not a pack: pack.json is missing"


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path):
    path = tmp_path / "x.zip"
    write(path, [(entry("pack.json", compress_type=zipfile.ZIP_DEFLATED), bytes(50_000_000))])
    assert path.stat().st_size < 60_000
    assert refuse(path).endswith("x.zip is compressed, which a pack never is: it could unpack to more than its size")


@pytest.mark.parametrize(
    "change",
    [
        {"external_attr": 0o120777 << 16},
        {"comment": b"hidden"},
        {"extra": b"\x99\x99\x04\x00abcd"},
        {"date_time": (2026, 11, 18, 0, 0, 0)},
    ],
)
def test_entries_of_another_form_are_refused(tmp_path, change):
    path = write(tmp_path / "x.zip", [(entry("pack.json", **change), b"x")])
    assert "is not laid out as fragility writes packs" in refuse(path)


def test_nothing_hides_between_or_around_entries(made, tmp_path):
    data = made.archive.read_bytes()
    for forged in (b"before" + data, data + b"after", data[:-2] + b"\x05\x00after"):
        path = tmp_path / "x.zip"
        path.write_bytes(forged)
        assert "is not laid out as fragility writes packs" in refuse(path) or "is not an archive of a pack" in refuse(
            path
        )
    unsorted = write(tmp_path / "y.zip", [(entry("b"), b"1"), (entry("a"), b"2")])
    assert "it may contain hidden data" in refuse(unsorted)
    assert "is not an archive of a pack: File is not a zip file" in refuse(_text(tmp_path / "z.zip"))


def _text(path):
    path.write_text("no archive")
    return path


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_archive_never_holds(made, tmp_path_factory, data):
    """One byte changed anywhere: a sentence, or a check that fails; never a traceback, never a pack that holds."""
    whole = bytearray(made.archive.read_bytes())
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.mktemp("damaged") / "x.zip"
    path.write_bytes(whole)
    try:
        outcome = fg.verify_pack(path)
    except fg.FragilityError:
        return
    assert not outcome


def test_links_and_odd_files_in_a_folder_are_refused(made, tmp_path):
    import shutil

    folder = shutil.copytree(made.pack, tmp_path / "copy")
    (folder / "more.html").symlink_to(folder / "index.html")
    assert refuse(folder).endswith("contains 'more.html', which is not part of a pack; remove it")
    (folder / "more.html").unlink()
    (folder / ".DS_Store").write_text("")
    assert refuse(folder).endswith("contains '.DS_Store', which is not part of a pack; remove it")


def test_an_archive_too_large_is_refused(tmp_path, monkeypatch):
    from fragility.packing import archive

    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a").write_bytes(bytes(100))
    monkeypatch.setattr(archive, "LARGEST", 100)
    with pytest.raises(fg.DataError, match="a pack of 200 bytes in 1 files is too large for an archive; name a folder"):
        write_archive(tmp_path / "folder", tmp_path / "x.zip")
    assert list_files(tmp_path / "folder") == ["a"] and not (tmp_path / "x.zip").exists()
