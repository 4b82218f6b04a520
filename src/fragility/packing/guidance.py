"""What supervisors and lawmakers ask of a model, in our own words, and what of it a pack shows.

The table names only what could be confirmed, and says when. It maps evidence to questions; it is no legal advice, and
no pack makes a model compliant: most of what is asked concerns people, processes and data that no audit sees.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from fragility.packing.figures import PackFigure

Status: TypeAlias = Literal["shown", "in part", "not covered"]
CHECKED = "November 2026"


@dataclass(frozen=True, slots=True)
class Framework:
    """A text that asks something of models."""

    key: str
    name: str
    standing: str  # since when, and instead of what
    checked: str  # how that was confirmed


@dataclass(frozen=True, slots=True)
class Requirement:
    """One thing that a framework asks for."""

    framework: str
    place: str
    asks: str
    shown_by: tuple[str, ...] = ()  # figures, or their beginnings, any of which answers it in part
    answer: str = ""  # what they show
    missing: str = ""  # what they do not; without it, they answer the question


@dataclass(frozen=True, slots=True)
class Finding:
    """What a pack answers to a question."""

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
        "Which decisions change when evidence is lost, how many pieces it takes, and which cannot be lost that way",
        "Faults other than the losses that the protocol declares",
    ),
    Requirement(
        "eu", "15(4), wrong input", "The same where values are there but wrong, noisy or in another unit.",
        WRONG,
        "Which decisions depend on such values, mode by mode",
        "Faults other than the failure modes that the audit assessed",
    ),
    Requirement(
        "eu", "15(4), other systems", "Inconsistencies that arise between systems, such as a converted model.",
        ("parity_",),
        "Whether the deployed artefact answers as the audited model does, on rows and on degraded states of them",
        "Other artefacts than the one compared, and what changes in a service later",
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
        "us", "Outcomes analysis", "Predictions compared with what came out.",
        ("accuracy", "confident_accuracy"),
        "Accuracy on the audited rows",
        "Other rows, later outcomes, and the cost of errors",
    ),
    Requirement(
        "us", "Ongoing monitoring", "The model followed after its release, with thresholds that lead to action.",
        ("gate",),
        "Verdicts by declared rules, which a later audit can be held to",
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
        "Every claim can be computed again by somebody else, who need not trust whoever made the audit",
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
        "Limits that the audit was held to",
        "Whether they are the right ones, and what follows where one is broken",
    ),
    Requirement(
        "uk", "Principle 5, mitigants", "Other mitigants where a model falls short: reviews, adjustments, better data.",
        RATES,
        "How many decisions outages cost, so how many a more reliable feed can save",
        "Measures taken",
    ),
)  # fmt: skip


def find_answers(figures: Collection[PackFigure]) -> list[Finding]:
    """Return what a pack with these figures answers to each question."""
    names = [figure.name for figure in figures if figure.value is not None]
    findings = []
    for question in QUESTIONS:
        shown = tuple(name for name in names if any(_belongs(name, beginning) for beginning in question.shown_by))
        if not shown:
            says = "Not covered by this audit."
            says += f" It would show: {_lower(question.answer)}." if question.answer else ""
            status: Status = "not covered"
        else:
            says = f"{question.answer}." + (f" Not covered: {_lower(question.missing)}." if question.missing else "")
            status = "in part" if question.missing else "shown"
        findings.append(Finding(question.framework, question.place, question.asks, status, says, shown))
    return findings


def _belongs(name: str, beginning: str) -> bool:
    return name == beginning or (beginning.endswith("_") and name.startswith(beginning))


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]
