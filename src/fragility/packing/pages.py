"""The pages of a pack: an index that opens offline, and a section to put into a model card.

The index has a table of what supervisors and lawmakers require of a model, in our own words, and which of it the pack
shows. The table names only what could be confirmed, and says when. It maps evidence to questions; it is not legal
advice, and no pack makes a model compliant: most requirements concern people, processes and data that an audit does
not cover.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from fragility.base.text import replace_controls
from fragility.blocks.baselines.comparison import name_stability
from fragility.blocks.lattice.values import LatticeDeclaration
from fragility.blocks.modes import ModesDeclaration
from fragility.gate.verdicts import GateResult
from fragility.packing.sources import (
    AUDIT,
    AUDIT_KEY,
    CARD,
    CHECKER,
    EARLIER,
    INDEX,
    LABELS,
    PACK_KEY,
    PROTOCOL,
    RELIABILITY,
    REPORT,
    REPORT_NUMBERS,
    RULES,
    STRESS,
    VERDICTS,
    VERDICTS_TEXT,
    Evidence,
    PackFigure,
    describe_source,
    list_parities,
)
from fragility.pages.sections import (
    Cell,
    Document,
    Facts,
    Lead,
    Links,
    Lists,
    Notice,
    Numbers,
    PageBlock,
    Section,
    ShellCommand,
    Table,
    Text,
    render_html,
    render_markdown_block,
)
from fragility.pages.wording import make_sentence, write_count

# --- requirements ---------------------------------------------------------------------------------------------

Status: TypeAlias = Literal["shown", "in part", "not covered"]
NOT_COVERED: Status = "not covered"
CHECKED = "November 2026"


@dataclass(frozen=True, slots=True)
class Framework:
    """A law or guidance with requirements for models."""

    key: str
    name: str
    standing: str  # when it takes effect, and what it replaces
    checked: str  # how that was confirmed


@dataclass(frozen=True, slots=True)
class Requirement:
    """One requirement of a framework."""

    framework: str
    place: str
    asks: str
    shown_by: tuple[str, ...] = ()  # figures, or prefixes of their names; each of them answers it in part
    answer: str = ""  # what these figures show
    missing: str = ""  # what they do not show; if empty, they answer the question


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer of a pack to one requirement."""

    framework: str
    place: str
    asks: str
    status: Status
    says: str
    figures: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form."""
        return {**asdict(self), "figures": list(self.figures)}


FRAMEWORKS = (
    Framework(
        "eu",
        "Regulation (EU) 2024/1689 (Artificial Intelligence Act), Article 15",
        "For high-risk systems. By the amendments that the Council adopted on 29 June 2026, the requirements apply to "
        "the systems of Annex III from 2 December 2027, and to those of Annex I from 2 August 2028.",
        f"{CHECKED}: the paragraphs of Article 15, and announcements of the amendments; their publication in the "
        "Official Journal was not looked up.",
    ),
    Framework(
        "us",
        "Revised Guidance on Model Risk Management: Federal Reserve SR 26-2, OCC Bulletin 2026-13, FDIC FIL-15-2026",
        "Of 17 April 2026, in the place of SR 11-7 and OCC 2011-12. It states principles that are not enforced as "
        "such, is expected to be most relevant to organisations with more than 30 billion dollars in assets, and "
        "excludes generative and agentic AI.",
        f"{CHECKED}: the Federal Reserve's letter and summaries of the guidance; topics are named, no paragraphs.",
    ),
    Framework(
        "uk",
        "Prudential Regulation Authority SS1/23, Model risk management principles for banks",
        "Published on 17 May 2023, in effect since 17 May 2024, for firms with approved internal models.",
        f"{CHECKED}: the five principles on the Bank of England's page; sub-principles are not named.",
    ),
)

LOSS = ("flips_after_one", "flips_early", "holds", "never_flips", "exposed", "exposed_lost", "searched", "proved")
WRONG = ("exposed_wrong", "exposed_noisy", "exposed_stale")
RATES = ("lost", "reliability_lost")

QUESTIONS = (
    Requirement(
        "eu", "15(1)", "An appropriate level of accuracy and robustness, held over the whole lifecycle.",
        (*LOSS, "accuracy"),
        "How far the decisions of this model on these rows depend on single pieces of evidence",
        "Whether the level is appropriate, and whether it lasts: a pack is of one model at one time",
    ),
    Requirement(
        "eu", "15(3)", "Levels and measures of accuracy, declared in the instructions for use.",
        ("accuracy", "confident_accuracy"),
        "Accuracy on the audited rows, to be declared with how these rows were chosen",
        "Other measures, and the instructions for use themselves",
    ),
    Requirement(
        "eu", "15(4), faults", "Resilience to errors, faults and inconsistencies in the system or around it.",
        LOSS,
        "Which decisions change when evidence is lost, how many groups it takes, and which decisions hold",
        "Faults other than the losses that the protocol declares",
    ),
    Requirement(
        "eu", "15(4), wrong input", "The same for values that are present but wrong, noisy or in another unit.",
        WRONG,
        "Which decisions depend on such values, mode by mode",
        "Faults other than the failure modes that the audit assessed",
    ),
    Requirement(
        "eu", "15(4), other systems", "Inconsistencies that arise between systems, such as a converted model.",
        ("parity_",),
        "Whether the deployed artefact answers as the audited model does, on rows and on degraded states of them",
        "Artefacts other than the one compared, and later changes in a service",
    ),
    Requirement(
        "eu", "15(4), redundancy", "Technical redundancy, such as backup or fail-safe plans.",
        RATES,
        "How many decisions outages cost at the declared rates",
        "The plans themselves",
    ),
    Requirement(
        "eu", "15(4), backups", "Which evidence to make redundant first.",
        ("reliability_first",),
        "Which field a backup saves most decisions for, at the declared rates",
        "What a backup costs",
    ),
    Requirement("eu", "15(4), feedback", "Systems that go on learning: outputs must not come back as biased inputs."),
    Requirement("eu", "15(5)", "Resilience to attacks: poisoned data or models, adversarial examples, leaks."),
    Requirement(
        "us", "Development and testing", "Tests that the model is sound, also with unusual and missing inputs.",
        (*LOSS, *WRONG),
        "What each decision rests on, and what its loss does, for every audited row",
        "The choice of method and of data, and the purpose",
    ),
    Requirement(
        "us", "Limitations", "Known limitations, documented for those who use the model.",
        LOSS,
        "The decisions that rest on little, listed one by one in the report, and the limits of the method itself",
        "Limitations that do not concern evidence",
    ),
    Requirement(
        "us", "Outcomes analysis", "Predictions compared with outcomes.",
        ("accuracy", "confident_accuracy"),
        "Accuracy on the audited rows",
        "Other rows, later outcomes, and the cost of errors",
    ),
    Requirement(
        "us", "Ongoing monitoring", "The model monitored after its release, with thresholds that lead to action.",
        ("gate",),
        "Verdicts by declared rules, which later audits can be checked with",
        "Later audits: this pack is of one time",
    ),
    Requirement(
        "us", "Implementation", "The model in use is the one that was validated.",
        ("parity_",),
        "A comparison of the audited model with the artefact in use",
        "Inputs and processes around it",
    ),
    Requirement(
        "us", "Validation by others", "Validation by people who did not develop the model and can challenge it.",
        ("rows",),
        "Anyone can compute every claim again, without trusting the people who made the audit",
        "Who did so, and what they concluded",
    ),
    Requirement("us", "Governance", "Inventory, materiality, policies, roles, and oversight of vendors."),
    Requirement("uk", "Principle 1", "Models identified, listed and classified by their risk."),
    Requirement("uk", "Principle 2", "Governance: the board, accountable people, policies."),
    Requirement(
        "uk", "Principle 3", "Sound development, implementation and use: tests, data, limits, deployment.",
        (*LOSS, *WRONG, "parity_"),
        "Tests of what decisions rest on, with the protocol that declares them",
        "Design, data and use",
    ),
    Requirement(
        "uk", "Principle 4", "Independent validation, in proportion to the risk.",
        ("rows",),
        "Material for a validator: certificates that can be computed again, claim by claim",
        "The validation itself",
    ),
    Requirement(
        "uk", "Principle 5, limits", "Limits on the use of a model that falls short.",
        ("gate",),
        "Limits that the audit was checked against",
        "Whether they are the right ones, and what follows if one is broken",
    ),
    Requirement(
        "uk", "Principle 5, mitigants", "Other mitigants where a model falls short: reviews, adjustments, better data.",
        RATES,
        "How many decisions outages cost, and so how many a more reliable feed can save",
        "Measures taken",
    ),
)  # fmt: skip


def find_answers(figures: Collection[PackFigure]) -> list[Finding]:
    """Return the answer of a pack with these figures to each requirement."""
    names = [figure.name for figure in figures if figure.value is not None]
    findings = []
    for question in QUESTIONS:
        shown = tuple(name for name in names if any(_belongs(name, beginning) for beginning in question.shown_by))
        if not shown:
            says = "Not covered by this audit."
            says += f" It would show: {_lower(question.answer)}." if question.answer else ""
            status = NOT_COVERED
        else:
            says = f"{question.answer}." + (f" Not covered: {_lower(question.missing)}." if question.missing else "")
            status = "in part" if question.missing else "shown"
        findings.append(Finding(question.framework, question.place, question.asks, status, says, shown))
    return findings


def _belongs(name: str, beginning: str) -> bool:
    return name == beginning or (beginning.endswith("_") and name.startswith(beginning))


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


# --- pages ----------------------------------------------------------------------------------------------------

GENERATOR = "fragility pack"
BIG = ("rows", "confident", "flips_after_one", "flips_early", "accuracy", "lost", "gate")
MOST_BIG = 5
NO_VERDICT = "No verdict: the rules were derived from this audit, which therefore always keeps to them."
CHECK = "fragility verify PACK"
VERIFY = "fragility verify {audit} --model MODEL --data DATA"
VERIFY_ALONE = f"python PACK/{CHECKER} {{audit}} MODEL ROWS"


# --- shown, and not shown ---------------------------------------------------------------------------------------


def tell_shown(evidence: Evidence, by_name: dict[str, PackFigure]) -> list[str]:
    """Return what the pack shows, a line each."""
    audit, lines = evidence.audit, []
    lines.append(
        f"What {by_name['rows'].shown} predictions rest on: which groups of evidence, and when each one flips."
    )
    if audit.baselines is not None:
        lines.append(
            f"Whether this depends on the values that replace lost evidence: {name_stability(audit.baselines)}."
        )
    if "searched" in by_name:
        lines.append(
            f"The smallest set of groups whose loss flips it, searched for {by_name['searched'].shown} of them."
        )
    if "changes_early" in by_name:
        early = by_name["changes_early"]
        lines.append(f"{early.shown} {early.label}. No choice of a baseline can dispute this.")
    declared = audit.manifest.find_block(ModesDeclaration)
    modes = [] if declared is None else [mode for mode in declared.units if mode != "lost"]
    if modes:
        lines.append(f"What happens when evidence is not lost but {' or '.join(modes)}.")
    for name in ("lost", "reliability_lost"):
        if name in by_name:
            lines.append(f"{by_name[name].shown} {by_name[name].label}.")
    if "accuracy" in by_name:
        lines.append(f"{by_name['accuracy'].shown} {by_name['accuracy'].label}.")
    if evidence.verdicts is not None and not evidence.verdicts.from_itself:
        count = write_count(len(evidence.verdicts.verdicts), "verdict")
        lines.append(f"{count} of a gate: {evidence.verdicts.outcome}.")
    lines += [
        f"{parity.b.name} {'answers' if parity.agrees else 'does NOT answer'} as the audited model does, "
        f"compared in {parity.states:,} states."
        for parity in evidence.parities
    ]
    if evidence.verified is not None:
        lines.append(f"The audit is signed, validly under the key {evidence.verified[:16]} in this pack.")
    return lines


def tell_missing(evidence: Evidence, findings: Sequence[Finding]) -> list[str]:
    """Return what the pack does not show, a line each."""
    audit, lattice = evidence.audit, evidence.audit.manifest.find_block(LatticeDeclaration)
    lines = []
    if audit.baselines is None:
        lines.append("Whether the finding depends on the baseline: it was not compared under others.")
    if audit.manifest.find_block(ModesDeclaration) is None:
        lines.append("Wrong, noisy or stale values: the audit has no failure modes.")
    if (lattice is None or not lattice.has_failures) and evidence.reliability is None:
        lines.append("How many decisions outages cost: no rates were declared.")
    if evidence.labels is None:
        lines.append("Whether predictions are right: no true classes were given.")
    if evidence.verdicts is None:
        lines.append("Whether the result is acceptable: no rules were declared.")
    elif evidence.verdicts.from_itself:
        lines.append("Whether the result is acceptable: the rules were derived from this audit.")
    if not evidence.parities:
        lines.append("Whether the deployed model is the audited one: no artefact was compared.")
    if not evidence.signers:
        lines.append("Who vouches for the audit: it is not signed.")
    elif evidence.verified is None:
        lines.append("Whether the signature is valid: no public key was given.")
    if not evidence.settings.certificates:
        lines.append("The certificates themselves: this pack names them by digest only.")
    lines.append("Robustness in general: certificates are witnesses of fragility under the declared protocol.")
    names = {"eu": "AI Act", "us": "SR 26-2", "uk": "SS1/23"}
    open_places = [f"{names[f.framework]} {f.place}" for f in findings if f.status == NOT_COVERED]
    lines.append(f"Not covered by this audit, of {len(findings)} questions below: {'; '.join(open_places)}.")
    return lines


# --- index ------------------------------------------------------------------------------------------------------


def render_index(evidence: Evidence, figures: Sequence[PackFigure], findings: Sequence[Finding]) -> str:
    """Return the first page of a pack."""
    settings, manifest = evidence.settings, evidence.audit.manifest
    by_name = {figure.name: figure for figure in figures}
    title = replace_controls(f"{settings.title}: {manifest.model.kind}")
    byline = "; ".join(text for text in (settings.author, settings.purpose, settings.date) if text)
    early, confident = by_name["flips_early"], by_name["confident"]
    of_these = (
        f"; of these {early.with_interval} flip when one or two groups of evidence are lost" if confident.value else ""
    )
    lead = [f"Of {by_name['rows'].shown} audited predictions {confident.shown} are confident{of_these}."]
    if evidence.audit.baselines is not None:
        lead.append(make_sentence(evidence.audit.baselines.sentence()))
    if evidence.verdicts is not None:
        judged = f"Judged by declared rules: {evidence.verdicts.outcome}."
        lead.append(NO_VERDICT if evidence.verdicts.from_itself else judged)
    unlike = [parity.b.name for parity in evidence.parities if not parity.agrees]
    big = [name for name in BIG if name in by_name][:MOST_BIG]
    sides = (
        ("What was shown", tell_shown(evidence, by_name), False),
        ("What was not", tell_missing(evidence, findings), True),
    )
    links = [(REPORT, "The report"), ("#figures", "Every figure with its source"), ("#check", "How to check this pack")]
    summary: list[PageBlock] = [
        Lead(lead),
        *([Notice(f"{', '.join(unlike)} is not the model that was audited.")] if unlike else []),
        Numbers([by_name[name].large for name in big]),
        Lists(sides),
        Links([(label, link) for link, label in links]),
    ]
    sections = [
        Section("summary", "What this pack shows, and what it does not", summary),
        _show_figures(evidence, figures),
        *([_show_verdicts(evidence.verdicts)] if evidence.verdicts is not None else []),
        *_show_guidance(findings, by_name),
        _show_checks(evidence),
        Section("files", "Files", [_list_contents(evidence)]),
    ]
    return render_html(Document(title, byline, sections, GENERATOR))


def _show_figures(evidence: Evidence, figures: Sequence[PackFigure]) -> Section:
    text = (
        "Figures of certificates are computed from the table in the folder audit. fragility verify with this pack "
        "computes the figures again; with the folder audit, the model and the rows it computes the certificates again."
    )
    rows = [(figure.with_interval, figure.label, describe_source(figure.source, evidence.audit)) for figure in figures]
    anchors = [f"figure-{figure.name}" for figure in figures]
    table = Table("", ("Figure", "What it is", "Source"), rows, words=3, anchors=anchors)
    return Section("figures", "Every figure and where it comes from", [Text([text]), table])


def _show_verdicts(result: GateResult) -> Section:
    outcome = "none, the rules were derived from this audit" if result.from_itself else result.outcome
    text = "A verdict is inconclusive if the audit has too few rows to decide."
    blocks: list[PageBlock] = [Text([text]), Links([("The rules", RULES)]), result.tabulate()]
    return Section("gate", f"Verdicts of the gate: {outcome}", blocks)


def _show_guidance(findings: Sequence[Finding], by_name: dict[str, PackFigure]) -> list[Section]:
    text = (
        "Questions are in our own words. This is a map of evidence, not legal advice: a pack does not make a model "
        "compliant. If you rely on a text, read the text itself."
    )
    sections = [Section("guidance", "What is required of models, and which of it this pack shows", [Text([text])])]
    for framework in FRAMEWORKS:
        rows = [
            (
                finding.place,
                finding.asks,
                Cell(finding.status, amiss=finding.status == NOT_COVERED),
                Cell(finding.says, more=[(by_name[name].shown, f"#figure-{name}") for name in finding.figures]),
            )
            for finding in findings
            if finding.framework == framework.key
        ]
        table = Table("", ("Place", "Asks for", "Status", "What this pack shows, with its figures"), rows, words=4)
        standing = Text([f"{framework.standing} Checked: {framework.checked}"])
        sections.append(Section(f"guidance-{framework.key}", framework.name, [standing, table], level=3))
    return sections


def _show_checks(evidence: Evidence) -> Section:
    manifest, protocol = evidence.audit.manifest, evidence.audit.protocol
    facts = [
        ("Model", f"{manifest.model.kind}, classes {', '.join(map(str, manifest.model.classes))}"),
        ("Fingerprint", manifest.model.fingerprint or "none"),
        ("Rows", f"{manifest.input.rows:,}, digest {manifest.input.digest}"),
        ("Protocol", f"{manifest.protocol_digest}, {len(protocol.groups)} groups, baseline {protocol.baseline}"),
        ("Root of all certificates", manifest.root_digest),
        ("Signed by", ", ".join(evidence.signers) or "nobody"),
        ("Limits", manifest.limits),
    ]
    commands = [block for text, command in _list_checks(evidence) for block in (Text([text]), ShellCommand(command))]
    return Section("check", "How to check it", [*commands, Facts(facts)])


def _list_checks(evidence: Evidence) -> list[tuple[str, str]]:
    whole = evidence.settings.certificates
    where, folder = ("", "PACK/audit") if whole else (" --audit AUDIT", "AUDIT")
    checks = [
        ("Every file, every figure and every page of this pack, made again from its certificates:", CHECK + where),
        ("Every claim of every certificate, computed again from the model and the rows:", VERIFY.format(audit=folder)),
        ("The same by the file in this pack, without fragility:", VERIFY_ALONE.format(audit=folder)),
    ]
    if evidence.signers:
        signed = "fragility verify PACK/audit --public-key KEY"
        checks.append(("Who signed the audit, with a public key from a source that you trust:", signed))
    return checks


def _list_contents(evidence: Evidence) -> Table:
    """Return the files of a pack and what they hold."""
    content = "certificates, " if evidence.settings.certificates else ""
    files = [
        (REPORT, "The report: what predictions rest on, who is exposed, which cases to look at"),
        (REPORT_NUMBERS, "Every number of the report"),
        (PROTOCOL, "The protocol: what may fail, and toward what"),
        (f"{AUDIT}/manifest.json", f"The audit: {content}protocol and digests, a folder for fragility verify"),
        (CARD, "A section for a model card"),
        (CHECKER, "A verifier in one file, which shares no code with fragility: read it, then run it"),
        ("pack.json", "Figures with their sources, answers, and the digest of every file"),
    ]
    optional = {
        RULES: "The rules of the gate",
        VERDICTS_TEXT: "Its verdicts, to read",
        VERDICTS: "Its verdicts, as data",
        f"{EARLIER}/manifest.json": "The earlier audit that it was compared with",
        LABELS: "True classes by row id",
        STRESS: "Labels of held-out stress",
        RELIABILITY: "Failure probabilities, and what to make reliable first",
        AUDIT_KEY: "The public key of the audit's signature; compare it with one from a source that you trust",
        PACK_KEY: "The public key of this pack's signature; compare it likewise",
    }
    derived = {VERDICTS, VERDICTS_TEXT} if evidence.verdicts is not None else set()
    files += [(name, text) for name, text in optional.items() if name in derived or (evidence.folder / name).exists()]
    files += [
        (name, "A comparison of the audited model with another artefact") for name in list_parities(evidence.folder)
    ]
    return Table("", ("File", "What it holds"), [(Cell(name, link=name), text) for name, text in files], words=2)


# --- model card -------------------------------------------------------------------------------------------------


def render_card(evidence: Evidence, figures: Sequence[PackFigure], findings: Sequence[Finding]) -> str:
    """Return Markdown for a section of a model card, without its heading."""
    by_name, manifest = {figure.name: figure for figure in figures}, evidence.audit.manifest
    opening = (
        "The evidence behind each prediction was removed group by group, the most important first, by a protocol. "
        f"The model is known by the fingerprint {manifest.model.fingerprint}."
    )
    check = f"All figures follow from the certificates in the evidence pack ({INDEX}). To check them:"
    blocks: list[PageBlock] = [
        Text([opening]),
        Table("", ("figure", "value"), [(figure.label, figure.with_interval) for figure in figures]),
        Lists([("Shown", tell_shown(evidence, by_name), False), ("Not shown", tell_missing(evidence, findings), True)]),
        Text([check]),
        ShellCommand(CHECK),
    ]
    return "\n\n".join(map(render_markdown_block, blocks)) + "\n"
