"""The smoke profile from end to end, as the command line runs it: on bundled data, so it runs everywhere."""

from test_cli import run


def test_the_smoke_profile_runs_resumes_and_makes_its_tables(tmp_path):
    out = tmp_path / "smoke"
    first = run("study", "run", "smoke", "--out", out, "--jobs", "2")
    assert first.code == 0, first.err
    units = sorted(place.name for place in (out / "units").iterdir())
    assert units == ["credit_g.logreg.0", "credit_g.mlp.0", "credit_g.rf.0"]
    stamps = {name: (out / "units" / name / "DONE").stat().st_mtime_ns for name in units}
    again = run("study", "run", "smoke", "--out", out)
    assert again.code == 0, again.err
    assert stamps == {name: (out / "units" / name / "DONE").stat().st_mtime_ns for name in units}  # nothing run twice
    tables = run("study", "tables", out)
    assert tables.code == 0, tables.err
    assert "CFC-FDS" in tables.out
