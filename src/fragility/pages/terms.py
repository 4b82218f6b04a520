"""Terms: the words with one meaning in certificates and pages, and the states that certificates hold as words."""

from typing import Final

# How far the smallest failing set of a row is proved. Certificates hold these words.
MINIMUM = "minimum"
UPPER_BOUND = "upper bound"
NONE_AT_ALL = "none at all, proved"
UNDECIDED = "not decided"
NOT_SEARCHED = "not searched"

# Whether the rows at hand support a rule of a review policy. Saved policies hold these words.
ATTAINED: Final = "attained"
NOT_ATTAINABLE: Final = "not attainable"

# What is known of the interval in which a field may move.
EXACT = "exact"
BRACKETED = "bracketed"
MISSING = "missing"
NOT_WHOLE = "not whole"
UNLISTED = "unlisted"

LOSS_NAMES = {
    "targeted": "strongest groups first",
    "independent": "each group on its own",
    "common": "all evidence together",
}
# What a unit of evidence turns into when it fails in a mode.
MODE_MEANINGS = {
    "lost": "a group of evidence is replaced by its baseline",
    "wrong": "a group of evidence takes a value that is typical of the training rows",
    "noisy": "a number is off, upward or downward, by a fraction of its standard deviation",
    "stale": "a group of evidence has its value of an earlier time",
    "sentinel": "a field holds a declared error code",
    "outage": "groups are lost together, as in a recorded outage",
}
# A failure mode of any unit, and of the one named.
MODE_WORDS = {
    "lost": ("lost evidence", "a lost {}"),
    "wrong": ("wrong values", "a wrong {}"),
    "noisy": ("noisy values", "noise in {}"),
    "stale": ("stale values", "a stale {}"),
    "sentinel": ("error codes", "an error code in {}"),
    "outage": ("recorded outages", "a recorded outage"),
}
GLOSSARY = {
    "prediction": "What the model answers for one row: a class with a probability.",
    "confidence": "The probability of the predicted class.",
    "confident": "A prediction whose confidence reaches the declared limit, 90% unless said otherwise.",
    "evidence group": "Columns that fail together, by default all columns made from one raw field.",
    "lost": "Evidence is lost when its values are replaced by the baseline, because the real ones failed to arrive.",
    "already missing": (
        "A field that holds no value in the row itself. It cannot be lost: no state moves it, and certificates name it."
    ),
    "baseline": "The values that replace lost evidence, fitted on training rows and declared in the protocol.",
    "stable across baselines": (
        "Under each other baseline the share that flips early stays within a factor of 2, or within 2 percentage "
        "points, of the declared one, and of the rows that flip early under either at least half do under both. Else "
        "the finding depends on the baseline, in number or in rows; with few rows it cannot be told."
    ),
    "protocol": "What the audit declares before it starts: groups, baseline, severities, depth and decision.",
    "margin": "Log of the predicted class's probability over that of its best competitor; below 0 it has lost.",
    "flip": "A prediction flips when another class takes the lead.",
    "failure mode": (
        "A way in which one unit of evidence fails: it is lost, it takes a wrong value, it is noisy. The protocol "
        "declares the modes, and the values that a unit may take."
    ),
    "exposure to a mode": (
        "1 - exp(-u), where u adds up how much of the margin the failure of each unit is expected to cost. Each mode "
        "has its own, and nothing is added up over modes."
    ),
    "flip chance": (
        "The probability that the failure of one unit, alone, flips a prediction, over the values it may take."
    ),
    "stability interval": (
        "The values that one field may take, within its training range, before the prediction flips, while everything "
        "else stays as it is."
    ),
    "path": "The groups in the order in which they are removed: largest drop of the margin first.",
    "k*": (
        "The flip budget: how many groups of the path are lost when the prediction flips. Found strongest first, so it "
        "is an upper bound on the fewest that would do."
    ),
    "flips early": (
        "A prediction that flips when one or two groups are lost. Where all sets of groups were searched, the number "
        "of such predictions is exact. Where only the path is known, two other groups may flip more of them: the "
        "number is then said to be at least so many."
    ),
    "smallest failing set": (
        "The fewest groups whose loss flips a prediction, found by searching all sets. By default those of the 1,000 "
        "most exposed confident predictions of tree ensembles and linear models are searched."
    ),
    "collapse": "The share of the margin that is lost: 0% on the full record, 100% once the prediction has flipped.",
    "RCMA": (
        "Normalised margin-collapse area: the mean collapse along the path, the full record included, so at most "
        "K / (K + 1) with K removals. The targeted loss."
    ),
    "independent loss": "The shares of the margin that each group takes when it fails alone, added up.",
    "common loss": "The mean collapse while all evidence fades together, over the severities.",
    "lambda*": (
        "The smallest severity of a gradual degradation that flips the prediction: at 0.3, evidence moved 30% of the "
        "way to the baseline is enough."
    ),
    "exposure": (
        "1 - exp(-u), where u is the weighted mean of targeted loss (RCMA), independent loss and common loss: 0 where "
        "a prediction rests on much, near 1 where it rests on little. It ranks the cases."
    ),
    "exposed": (
        "A prediction with a high exposure is exposed; the exposed corner holds the most exposed fifth of the "
        "confident ones."
    ),
    "FDS": (
        "Fragility dominance score, the paper's: 1 - exp(-u), where u is the weighted sum of RCMA, 1 / k* and the mean "
        "of 1 / lambda*. Between 0 and 1."
    ),
    "brittle": "A prediction that breaks under held-out stress, which no score has seen; only stress labels say so.",
    "95% interval": (
        "Of a share, Wilson's; of a difference, Tango's where both shares are of the same rows, else Newcombe's. It "
        "says how far the share may lie from that of many more rows drawn like these."
    ),
    "certificate": "What the audit claims about one prediction; anyone with the model and the row can recompute it.",
}


def none_up_to(size: int) -> str:
    """Return the state of a search that proved that no set of so many groups fails."""
    return f"none up to {size}, proved"
