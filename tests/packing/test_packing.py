"""A pack says what its certificates say, the same bytes each time, and nothing in it can be changed unnoticed."""

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import fragility_check as checker
import naive_pack
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from browser import AXE, chromium
from small_audits import small_audit

import fragility as fg
from fragility.base.canonical import canonical_bytes
from fragility.base.errors import CertificateError
from fragility.packing.archive import describe_files, list_files
from fragility.packing.pages import FRAMEWORKS, QUESTIONS, find_answers
from fragility.packing.sources import PackFigure, SourceReader
from fragility.packing.writing import _decode_floats, _sign_pack
from fragility.parity import ModelParity
from fragility.questions.reliability.outcomes import FailureProbability
from fragility.trust.signing import load_private_key

LEFT_OUT = ("pack.json", "signature.dsse.json")


def test_each_figure_equals_its_slow_twin(made):
    document = json.loads((made.pack / "pack.json").read_text())
    table = made.certs.to_pandas().astype(object).to_dict("records")
    names = [figure["name"] for figure in document["figures"]]
    expected = ["rows", "confident", "flips_after_one", "flips_early", "early_unsettled", "early_on_path", "holds"]
    expected += ["never_flips", "exposed", "exposed_wrong"]
    assert names[:10] == expected and {"lost", "accuracy", "gate", "reliability_lost", "parity_0"} <= set(names)
    for figure in document["figures"]:
        slow = naive_pack.compute(_decode_floats(figure["source"]), table, made.pack)
        value = float.fromhex(figure["value"]) if isinstance(slow, float) else figure["value"]
        assert value == slow, figure["name"]


def test_figures_are_those_of_the_library(made):
    figures = {f["name"]: f for f in json.loads((made.pack / "pack.json").read_text())["figures"]}
    summary = made.certs.summary(labels=made.given["labels"])
    value = {name: _decode_floats(figure["value"]) for name, figure in figures.items()}
    assert value["flips_early"] == summary["flips_early"].value
    assert (value["confident"], value["accuracy"]) == (summary["confident"].count, summary["accuracy"].value)
    assert value["lost"] == summary["lost"].total == pytest.approx(value["reliability_lost"])
    gate = fg.Gate.load(made.given["rules"])
    assert value["gate"] == gate.check(made.certs, made.certs, labels=made.given["labels"]).outcome == "fail"


def test_the_same_input_gives_the_same_bytes(made, tmp_path):
    again = fg.pack(made.home / "audit", tmp_path / "other name.zip", **made.given)
    assert again.read_bytes() == made.archive.read_bytes()
    assert list_files(made.pack)[0] == "audit/certificates-00000-" + list_files(made.pack)[0][25:]
    shutil.unpack_archive(again, tmp_path / "unpacked")
    there, here = (
        {name: (home / name).read_bytes() for name in list_files(home)} for home in (tmp_path / "unpacked", made.pack)
    )
    assert there == here


@pytest.mark.parametrize("which", ["pack", "archive"])
def test_a_pack_holds(made, which):
    outcome = fg.verify_pack(getattr(made, which), public_key=made.public)
    assert outcome and [check.name for check in outcome.checks] == [
        *("files", "format", "digests", "protocol", "earlier format", "earlier digests", "earlier protocol"),
        *("sources", "figures", "pages", "signature"),
    ]  # fmt: skip
    assert outcome.verdict == (
        "the pack is valid: its figures and pages follow from its sources; these sources are taken on trust: the "
        "certificates, the earlier audit, the true classes, the labels of held-out stress, the reliability analysis "
        "and the comparisons of models; fragility verify recomputes certificates, from the model and the rows"
    )


def test_a_check_says_of_each_source_what_was_checked(made, copy):
    found = FailureProbability.load(copy / "reliability.json")
    p_flip = np.where(np.arange(len(found)) == 0, 0.125, found.p_flip)  # a forgery that agrees with itself
    replace(found, p_flip=p_flip, low=p_flip, high=p_flip).save(copy / "reliability.json")
    rewrite(copy)
    detail = next(check.detail for check in fg.verify_pack(copy).checks if check.name == "sources")
    assert detail.startswith("checked only this: the certificates: their digests, and that they agree with")
    assert "the labels of held-out stress: nothing; the reliability analysis: that it is of the audited rows" in detail
    alone = fg.verify_pack(fg.pack(made.home / "audit", copy.parent / "alone"))
    assert "these sources are taken on trust: the certificates; fragility verify" in alone.verdict


def test_examples_of_comparisons_are_packed_without_values(made, tmp_path):
    found = fg.check_parity(made.model, shifted(made.model), made.rows[:20], made.certs.protocol)
    assert found.smallest is not None and found.smallest.row
    bare = fg.pack(made.home / "audit", tmp_path / "bare", parity=found)
    assert fg.verify_pack(bare)
    kept = ModelParity.load(bare / "parity" / "0.json").examples
    assert kept and all(each.row == {} and not any(each.changed.values()) for each in kept)
    assert "The row, to paste" not in (bare / "report.html").read_text()
    whole = fg.pack(made.home / "audit", tmp_path / "whole", parity=found, values=True)
    assert fg.verify_pack(whole) and "The row, to paste" in (whole / "report.html").read_text()
    assert ModelParity.load(whole / "parity" / "0.json") == found


def test_no_figure_is_computed_before_the_list_of_figures_is_right(copy, monkeypatch):
    asked = []
    compute = SourceReader.compute
    monkeypatch.setattr(SourceReader, "compute", lambda self, source: asked.append(source) or compute(self, source))

    def flood(document):
        document["figures"] += [{**document["figures"][1], "name": f"further {i}"} for i in range(500)]

    listed = len(json.loads((copy / "pack.json").read_text())["figures"])
    rewrite(copy, flood)
    assert failed(copy) == "figures: the figures in pack.json are not those of this pack: further 0"
    assert 0 < len(asked) <= 2 * listed  # and not 500 more
    rewrite(copy, lambda document: document["figures"].extend(document["figures"] * 3), fragility="99.0")
    assert failed(copy).startswith("figures: pack.json lists ")
    assert len(asked) <= 4 * listed


def test_labels_of_stress_are_read_within_bounds(made, copy):
    table = pq.read_table(copy / "stress.parquet")
    long = pa.DictionaryArray.from_arrays(pa.array([0] * len(table)), [os.urandom(600_000).hex()])
    pq.write_table(table.append_column("more", long), copy / "stress.parquet", compression="zstd")
    assert (copy / "stress.parquet").stat().st_size < 1_500_000  # of 240 MB in memory
    rewrite(copy)
    assert failed(copy).startswith("sources: cannot read stress.parquet: its columns take ")
    pq.write_table(pa.concat_tables([table] * 1000), copy / "stress.parquet", compression="zstd")
    rewrite(copy)
    message = "sources: cannot read stress.parquet: it declares 200000 rows, and such a file holds 200 at most"
    assert failed(copy) == message
    with open(copy / "stress.parquet", "wb") as file:
        file.truncate(64 * 2**20)  # holes: nothing on the disk
    rewrite(copy)
    assert failed(copy) == "sources: cannot read stress.parquet: it is larger than 1 MiB, which no such file is"


def test_labels_of_stress_of_other_rows_are_left_out(made, tmp_path):
    rows = np.concatenate([made.rows, made.rows[:50] + 1.0])
    stress = fg.label_brittle(made.model, rows, made.certs.protocol, fg.Stress(tau_confidence=0.7))
    pack = fg.pack(made.home / "audit", tmp_path / "pack", stress=stress)
    assert len(pq.read_table(pack / "stress.parquet")) == 200 and fg.verify_pack(pack)


def test_its_audit_can_be_verified(made):
    assert fg.verify(made.pack / "audit", made.model, made.rows).complete
    assert fg.verify_signature(made.pack / "audit", made.public)
    assert not (made.home / "audit" / "signature.dsse.json").exists()  # the copy was signed


def rewrite(folder, change=None, **settings):
    """Change a pack as a careful forger does: every digest of pack.json is made again."""
    document = json.loads((folder / "pack.json").read_text())
    if change is not None:
        change(document)
    document.update(settings)
    names = [name for name in list_files(folder) if name not in LEFT_OUT]
    document["files"] = describe_files(folder, names)
    (folder / "pack.json").write_bytes(canonical_bytes(document))


@pytest.fixture
def copy(made, tmp_path):
    return shutil.copytree(made.pack, tmp_path / "copy")


def failed(folder, **options):
    outcome = fg.verify_pack(folder, **options)
    assert not outcome
    return next(f"{check.name}: {check.detail}" for check in outcome.checks if not check.passed)


def test_a_changed_removed_or_added_file_is_refused(copy):
    page = (copy / "index.html").read_text()
    (copy / "index.html").write_text(page.replace("predictions audited", "predictions audited well"))
    assert failed(copy) == "files: index.html was changed: its digest differs from that in pack.json"
    (copy / "index.html").unlink()
    assert failed(copy) == "files: index.html is listed in pack.json but missing"
    (copy / "index.html").write_text(page)
    (copy / "notes.txt").write_text("all is well")
    assert failed(copy) == "files: notes.txt does not belong to this pack: pack.json does not list it"
    (copy / "notes.txt").unlink()
    assert fg.verify_pack(copy)


def test_a_forged_figure_is_refused(copy):
    def forge(document):
        next(figure for figure in document["figures"] if figure["name"] == "flips_early")["value"] = (0.01).hex()

    rewrite(copy, forge)
    assert failed(copy).startswith("figures: flips_early is stated as 0x1.47ae147ae147bp-7, but its source gives 0x")


@pytest.mark.parametrize("version", [None, "99.0"])
def test_a_figure_shown_otherwise_is_refused_whatever_version_is_claimed(copy, version):
    def forge(document):
        next(figure for figure in document["figures"] if figure["name"] == "confident")["shown"] = "7"
        document["fragility"] = version or document["fragility"]

    rewrite(copy, forge)
    assert failed(copy).startswith("figures: confident is shown as '7' instead of ")


def test_a_softer_source_is_refused(copy):
    def forge(document):
        figure = next(figure for figure in document["figures"] if figure["name"] == "flips_early")
        figure["source"] = {**figure["source"], "measure": "exposed"}
        figure["value"] = next(figure["value"] for figure in document["figures"] if figure["name"] == "exposed")

    rewrite(copy, forge)
    assert failed(copy) == "pages: pack.json differs from what the sources of this pack give"


@pytest.mark.parametrize("name", ["index.html", "report.html", "gate/verdicts.json", "model-card.md", "protocol.json"])
def test_a_page_that_does_not_follow_is_refused(copy, name):
    path = copy / name
    path.write_text(path.read_text() + " ")
    rewrite(copy)
    assert failed(copy) == f"pages: {name} differs from what the sources of this pack give"


def test_every_pack_has_the_verifier_in_one_file_and_another_one_is_refused(made, copy, monkeypatch):
    """The installed file is found beside the package: in the folder of a pack the search path would find its copy."""
    document = json.loads((copy / "pack.json").read_text())
    assert (copy / "fragility_check.py").read_bytes() == Path(checker.__file__).read_bytes()
    assert "fragility_check.py" in document["files"] and "fragility_check.py" in (copy / "index.html").read_text()
    detail = next(check.detail for check in fg.verify_pack(copy).checks if check.name == "pages")
    assert detail.endswith("made again and equal; fragility_check.py is the installed one")
    (copy / "fragility_check.py").write_text("print('every claim holds')")
    rewrite(copy)
    monkeypatch.chdir(copy)
    monkeypatch.syspath_prepend(str(copy))
    assert failed(copy) == "pages: fragility_check.py differs from the installed one"


def test_forged_verdicts_are_refused_whatever_version_is_claimed(copy):
    path = copy / "gate" / "verdicts.json"
    path.write_text(path.read_text().replace('"outcome": "fail"', '"outcome": "pass"', 1))

    def forge(document):
        next(figure for figure in document["figures"] if figure["name"] == "gate")["value"] = "pass"

    rewrite(copy, forge, fragility="99.0")
    assert failed(copy) == "figures: gate is stated as pass, but its source gives fail"


def test_pages_of_another_version_hold_only_if_they_are_signed(made, copy):
    page = copy / "index.html"
    page.write_text(page.read_text().replace("What was not", "What was almost"))
    rewrite(copy, fragility="0.0.1")
    words = f"not checked: .* written by fragility 0.0.1 and cannot be made again by {re.escape(fg.__version__)}; "
    signed = (copy / "signature.dsse.json").read_bytes()
    (copy / "signature.dsse.json").unlink()
    (copy / "keys" / "pack.pub").unlink()
    rewrite(copy, fragility="0.0.1")
    with pytest.raises(fg.VerificationError, match=words + "check the pack with that version, or with public_key"):
        fg.verify_pack(copy)  # nothing was found wrong, so it is not called false
    shutil.copyfile(made.pack / "keys" / "pack.pub", copy / "keys" / "pack.pub")
    (copy / "signature.dsse.json").write_bytes(signed)
    rewrite(copy, fragility="0.0.1")
    assert failed(copy).startswith("pages: ")  # the signature is of another pack
    _sign_pack(copy, (copy / "pack.json").read_bytes(), load_private_key(made.given["key"]))
    with pytest.raises(fg.VerificationError, match="not checked"):
        fg.verify_pack(copy)  # anybody can sign with a key of their own
    outcome = fg.verify_pack(copy, public_key=made.public)
    assert outcome and outcome.checks[-2].detail.endswith("; they are as they were signed")
    assert "its figures follow from its sources, and its pages are those that were signed; these" in outcome.verdict


def test_a_damaged_certificate_is_refused(copy):
    (part,) = (copy / "audit").glob("certificates-*")
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    rewrite(copy)
    assert failed(copy).startswith("format: ") and "was changed after it was written" in failed(copy)


def test_another_key_or_another_pack_is_refused(made, copy, tmp_path):
    other = fg.generate_keys(tmp_path / "other")
    assert failed(copy, public_key=other) == "signature: signature.dsse.json has no valid signature by this key"
    another = fg.pack(made.home / "audit", tmp_path / "another", **{**made.given, "title": "Another"})
    shutil.copyfile(another / "signature.dsse.json", copy / "signature.dsse.json")
    for options in ({"public_key": made.public}, {}):
        assert failed(copy, **options) == "signature: the signature is of another pack"
    (copy / "signature.dsse.json").unlink()
    assert failed(copy) == "signature: this pack is not signed, although it contains the signer's key keys/pack.pub"


def test_the_key_in_a_pack_shows_only_that_they_agree(made, tmp_path):
    (signature,) = [check for check in fg.verify_pack(made.pack).checks if check.name == "signature"]
    assert signature.passed and signature.detail.endswith("give a public key that you trust to check whose")
    plain = fg.pack(made.home / "audit", tmp_path / "plain")
    shutil.copyfile(made.pack / "signature.dsse.json", plain / "signature.dsse.json")
    assert failed(plain) == "signature: signature.dsse.json is present, but keys/pack.pub is missing"


def test_a_file_that_belongs_to_no_source_is_refused_even_if_listed(copy):
    (copy / "setup.exe").write_text("run me")
    rewrite(copy)
    assert failed(copy) == "sources: setup.exe is neither a source of the pack nor derived from one"
    (copy / "setup.exe").unlink()
    (copy / "attachments").mkdir()
    with pytest.raises(CertificateError, match="contains an empty folder, which a pack never does; remove"):
        fg.verify_pack(copy)


def test_a_damaged_earlier_audit_is_refused(made, copy, tmp_path):
    part = next((copy / "earlier").glob("certificates-*"))
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    rewrite(copy)
    assert failed(copy).startswith("earlier format: ")
    damaged = shutil.copytree(copy / "earlier", tmp_path / "damaged")
    with pytest.raises(CertificateError, match=r"damaged cannot be packed, its format is wrong: "):
        fg.pack(made.home / "audit", tmp_path / "pack", **{**made.given, "against": damaged})


def test_labels_that_contradict_are_refused(made, copy, tmp_path):
    labels = made.given["labels"]
    wrong = {
        "the row '0' has two labels, ": {**labels, "0": next(c for c in made.certs.classes if c != labels[0])},
        "1 of the 200 audited rows have no label": {**labels, 0: float("nan")},
        "labels must be a mapping of ids to classes, got list": [*labels.values()],
    }
    for message, given in wrong.items():
        with pytest.raises(fg.DataError, match=message):
            fg.pack(made.home / "audit", tmp_path / "pack", labels=given)
    pairs = json.loads((copy / "labels.json").read_text())
    (copy / "labels.json").write_text(json.dumps([*pairs, pairs[0]]))
    rewrite(copy)
    assert failed(copy) == "sources: labels.json must hold each id once"


def test_sources_that_do_not_belong_are_refused(made, copy):
    document = json.loads((copy / "reliability.json").read_text())
    document["decisions_lost"] += 1.0
    (copy / "reliability.json").write_text(json.dumps(document))
    rewrite(copy)
    rewrite(copy)
    assert failed(copy).startswith("sources: the reliability analysis says that ")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format="fragility-pack/9"), "has format 'fragility-pack/9', this version reads"),
        (lambda d: d["settings"].update(certificates="yes"), "certificates of a pack must be true or false, got 'yes'"),
        (lambda d: d["settings"].update(min_confidence="high"), "the settings of the pack are damaged"),
        (lambda d: d["settings"].pop("title"), "the settings of a pack must be exactly author, certificates, date"),
        (lambda d: d["figures"][0].update(source={"file": "../x", "pointer": "/a"}), "not a file name of a pack"),
        (lambda d: d["figures"][0].update(source={"file": "protocol.json", "pointer": "/a"}), "is malformed: KeyError"),
        (lambda d: d.update(figures=7), "is malformed: TypeError"),
    ],
)  # fmt: skip
def test_a_damaged_document_is_refused_in_a_sentence(copy, change, message):
    rewrite(copy, change)
    with pytest.raises(fg.FragilityError, match=r"^[^\n]*$") as refusal:
        fg.verify_pack(copy)
    assert message in str(refusal.value)


def test_a_document_in_another_form_is_refused(copy):
    path = copy / "pack.json"
    path.write_text(path.read_text() + "\n")
    with pytest.raises(CertificateError, match="is not in canonical form; it was not written by fragility pack"):
        fg.verify_pack(copy)
    path.write_text("{")
    with pytest.raises(CertificateError, match=r"cannot read .*pack.json: Expecting property name"):
        fg.verify_pack(copy)
    path.unlink()
    with pytest.raises(CertificateError, match=r"is not a pack: pack.json is missing"):
        fg.verify_pack(copy)
    with pytest.raises(CertificateError, match=r"there is no pack .*absent.zip; make one with fragility pack"):
        fg.verify_pack(copy / "absent.zip")


# --- without certificates ---------------------------------------------------------------------------------------


def test_a_pack_without_certificates_needs_the_audit(made, tmp_path):
    given = {**made.given, "against": None, "rules": None}
    pack = fg.pack(made.home / "audit", tmp_path / "small", certificates=False, **given)
    assert (
        not list((pack / "audit").glob("*.parquet"))
        and "names them by digest only" in (pack / "index.html").read_text()
    )
    with pytest.raises(
        fg.VerificationError, match=r"the certificates are not in this pack, .* the audit's folder with audit"
    ):
        fg.verify_pack(pack)
    assert fg.verify_pack(pack, audit=made.home / "audit", public_key=made.public)
    small_audit(30).save(tmp_path / "another")
    assert failed(pack, audit=tmp_path / "another").endswith("another is not the audit of this pack")
    with pytest.raises(fg.VerificationError, match="the certificates are in this pack; leave out audit"):
        fg.verify_pack(made.pack, audit=made.home / "audit")


# --- what is handed in ------------------------------------------------------------------------------------------


def test_what_does_not_belong_to_the_audit_is_refused(made, tmp_path):
    audit, out = made.home / "audit", tmp_path / "pack"
    other = small_audit(50, 3)
    wrong = {
        "the comparison of .* is of another model than the audit's": {
            "parity": fg.check_parity(shifted(made.model), made.model, made.rows[:5], made.certs.protocol)
        },
        "of other rows than the audit": {
            "reliability": fg.assess_reliability(made.model, made.rows[:5], made.certs.protocol, 0.1)
        },
        "reliability must be what assess_reliability returns, got dict": {"reliability": {"rows": 5}},
        "labels": {"labels": {0: "repaid"}},
        "an earlier audit is for rules with an allowance; add rules": {"against": audit},
        "has an allowance, so it needs an earlier audit": {
            "rules": made.given["rules"],
            "labels": made.given["labels"],
        },
        "there is no file of rules": {"rules": tmp_path / "absent.toml"},
        "the audit is not signed, so there is nothing to verify": {"public_key": made.public},
        "key signs the audit anew, so public_key": {"public_key": made.public, "key": made.given["key"]},
        "min_confidence must lie between 0 and 1": {"min_confidence": 2.0},
        "min_confidence must lie between 0 and 1, got 'high'": {"min_confidence": "high"},
        "title of a pack must be text, got 7": {"title": 7},
        "author of a pack contains a lone surrogate": {"author": "a\ud800"},
        "stress must be what label_brittle returns, or its table, got dict": {"stress": {}},
        "parity must be what check_parity returns, got str": {"parity": "deployed.json"},
    }
    (tmp_path / "by.toml").write_text('[[rule]]\nmeasure = "flips_early"\nat_most = 0.5\nby = "x1:q2"\n')
    wrong["a rule groups by 'x1:q2', a column of the audited rows, which a pack does not contain"] = {
        "rules": tmp_path / "by.toml"
    }
    for message, given in wrong.items():
        with pytest.raises(fg.FragilityError, match=message):
            fg.pack(audit, out, **given)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["by.toml"], message
    assert len(other) == 50


def shifted(model):
    import copy as copying

    other = copying.deepcopy(model)
    other.intercept_ = np.array([3.0])
    return other


def test_a_damaged_audit_is_not_packed(made, tmp_path):
    damaged = shutil.copytree(made.home / "audit", tmp_path / "damaged")
    next(damaged.glob("certificates-*")).write_bytes(b"")
    with pytest.raises(CertificateError, match="cannot be packed, its format is wrong: "):
        fg.pack(damaged, tmp_path / "pack")
    assert not (tmp_path / "pack").exists()


def test_only_a_pack_is_replaced(made, tmp_path):
    audit = made.home / "audit"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    (tmp_path / "mine.zip").write_text("not an archive")
    (tmp_path / "link.zip").symlink_to(tmp_path / "mine.zip")
    (tmp_path / "folder.zip").mkdir()
    refusals = {
        "mine": "mine exists and is not a pack; choose another name",
        "mine.zip": "mine.zip exists and is not a pack; choose another name",
        "link.zip": "link.zip is a symbolic link, which is never overwritten",
        "folder.zip": "folder.zip is a folder; choose another name",
        "absent/pack": "pack lies in a folder that does not exist; make",
    }
    for name, message in refusals.items():
        with pytest.raises(fg.DataError, match=message):
            fg.pack(audit, tmp_path / name)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"
    first = fg.pack(audit, tmp_path / "pack", title="First")
    assert fg.pack(audit, first, title="Second") == first and "Second" in (first / "index.html").read_text()
    with pytest.raises(
        fg.DataError, match="lies in the folder of the audit, which pack does not change; choose another"
    ):
        fg.pack(audit, audit / "pack")
    (first / "notes.txt").write_text("mine")
    with pytest.raises(
        fg.DataError, match=r"contains 'notes.txt', which does not belong to the pack there; choose another name"
    ):
        fg.pack(audit, first)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.zip", "link.zip", "mine", "mine.zip", "pack"]


# --- what it says -----------------------------------------------------------------------------------------------


def test_the_index_says_what_was_shown_and_what_was_not(made, tmp_path):
    whole = (made.pack / "index.html").read_text()
    plain = fg.pack(made.home / "audit", tmp_path / "plain").joinpath("index.html").read_text()
    assert "Judged by declared rules: fail." in whole and "Judged by" not in plain
    for sentence in (
        "Whether predictions are right: no true classes were given.",
        "Whether the result is acceptable: no rules were declared.",
        "Whether the deployed model is the audited one: no artefact was compared.",
        "Who vouches for the audit: it is not signed.",
    ):
        assert sentence in plain and sentence not in whole
    for page in (plain, whole):
        assert "AI Act 15(5)" in page and "SS1/23 Principle 2" in page
        assert "http" not in page.replace("http-equiv", "")  # nothing is fetched


def test_the_index_says_how_sure_confident_is(made, tmp_path):
    close = fg.pack(made.home / "audit", tmp_path / "close", min_confidence=0.995)
    assert "at least 99.5% sure" in (close / "index.html").read_text()
    none = fg.pack(made.home / "audit", tmp_path / "none", min_confidence=1)
    page = (none / "index.html").read_text()
    assert "audited predictions 0 are confident.</p>" in page and fg.verify_pack(none)


def test_lost_values_answer_no_question_about_wrong_ones():
    names = ("exposed_lost", "exposed_wrong", "exposed_noisy", "accuracy")
    answers = {
        answer.place: answer for answer in find_answers([PackFigure(name, "", 0.5, "50%", None, {}) for name in names])
    }
    assert answers["15(4), wrong input"].figures == ("exposed_wrong", "exposed_noisy")
    by_rules = {answer.place: answer for answer in find_answers([PackFigure("gate", "", "pass", "pass", None, {})])}
    assert by_rules["Principle 5, limits"].status == "in part" and "Principle 5" not in by_rules
    assert by_rules["Principle 5, mitigants"].status == "not covered"  # verdicts say nothing about feeds
    assert answers["15(4), faults"].figures == ("exposed_lost",) and answers["15(3)"].status == "in part"
    assert answers["15(4), faults"].says.endswith(
        "Not covered: faults other than the losses that the protocol declares."
    )


def test_links_of_the_index_lead_to_files_of_the_pack(made):
    import re

    page = (made.pack / "index.html").read_text()
    for target in re.findall(r'href="([^"]+)"', page):
        assert f'id="{target[1:]}"' in page if target.startswith("#") else (made.pack / target).is_file(), target


def test_every_question_is_answered_or_said_to_be_open(made):
    answers = json.loads((made.pack / "pack.json").read_text())["answers"]
    names = {figure["name"] for figure in json.loads((made.pack / "pack.json").read_text())["figures"]}
    assert len(answers) == len(QUESTIONS)
    assert {question.framework for question in QUESTIONS} == {framework.key for framework in FRAMEWORKS}
    for answer in answers:
        assert (answer["status"] == "not covered") == (not answer["figures"]) and set(answer["figures"]) <= names
        assert ("ot covered" in answer["says"]) == (answer["status"] != "shown")


def test_hostile_names_stay_text(made, tmp_path):
    pack = fg.pack(made.home / "audit", tmp_path / "pack", title="<script>alert(1)</script>\u202e", author="a & b")
    page = (pack / "index.html").read_text()
    assert "&lt;script&gt;" in page and "<script>alert" not in page and "\u202e" not in page


def test_the_section_fits_into_a_model_card(made, tmp_path):
    from skops.card import Card

    card = Card(made.model, template=None, model_diagram=False)
    card.add(**{"What predictions rest on": (made.pack / "model-card.md").read_text()})
    card.save(tmp_path / "README.md")
    text = (tmp_path / "README.md").read_text()
    assert "# What predictions rest on" in text and "| predictions audited | 200 |" in text
    assert "Not shown:" in card.select("What predictions rest on").content


def test_a_pack_may_move(made, tmp_path):
    moved = shutil.copytree(made.pack, tmp_path / "elsewhere" / "x")
    assert fg.verify_pack(moved) and str(made.home) not in (moved / "report.html").read_text()
    assert isinstance(moved, Path)


@pytest.mark.slow
def test_the_index_is_sound_in_a_browser(made):
    with chromium("--window-size=500,900") as browser:
        browser.get((made.pack / "index.html").as_uri())
        assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
        assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
        browser.execute_script(AXE.read_text(encoding="utf-8"))
        found = browser.execute_async_script("axe.run().then(arguments[arguments.length - 1])")
        assert [violation["id"] for violation in found["violations"]] == []


def test_rules_that_were_derived_from_the_audit_give_no_verdict(made, tmp_path):
    """An audit keeps to what was derived from it: a pack must not call that "pass"."""
    derived = fg.Gate.derive(made.certs)
    path = derived.save(tmp_path / "own.toml")
    assert fg.Gate.load(path) == derived and derived.derived_from == (made.certs.manifest.root_digest,)
    found = derived.check(made.certs)
    assert found.from_itself and "derived from this audit" in found.to_text()
    pack = fg.pack(made.home / "audit", tmp_path / "pack", rules=path)
    page = (pack / "index.html").read_text(encoding="utf-8")
    assert "No verdict: the rules were derived from this audit" in page
    assert "Judged by declared rules" not in page
    assert "gate" not in {figure["name"] for figure in json.loads((pack / "pack.json").read_text())["figures"]}
    assert fg.verify_pack(pack)
    changed = tmp_path / "changed.toml"
    changed.write_text(path.read_text().replace("derived_from = [", "derived_from = [1, "))
    with pytest.raises(fg.DataError, match=r"derived_from\.0 in the rules file must be text, got 1"):
        fg.Gate.load(changed)


def test_no_backup_is_recommended_without_a_reliability_analysis(made, tmp_path):
    pack = fg.pack(made.home / "audit", tmp_path / "pack")  # which has rates, and so decisions lost
    answers = {answer["place"]: answer for answer in json.loads((pack / "pack.json").read_text())["answers"]}
    assert answers["15(4), backups"]["status"] == "not covered"
    assert "backup" not in answers["15(4), redundancy"]["says"].split("Not covered")[0]
    full = {answer["place"]: answer for answer in json.loads((made.pack / "pack.json").read_text())["answers"]}
    assert full["15(4), backups"]["figures"] == ["reliability_first"]
