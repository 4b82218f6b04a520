"""The glossary, and the states that certificates and policies store as words."""

from typing import Final

# How far the smallest failing set of a row is proved. Certificates store these words.
MINIMUM = "minimum"
UPPER_BOUND = "upper bound"
NONE_AT_ALL = "none at all, proved"
UNDECIDED = "not decided"
NOT_SEARCHED = "not searched"

# Whether the labelled rows support a rule of a review policy. Saved policies store these words.
ATTAINED: Final = "attained"
NOT_ATTAINABLE: Final = "not attainable"

# The state of the interval in which a field may move.
EXACT = "exact"
BRACKETED = "bracketed"
MISSING = "missing"
NOT_WHOLE = "not whole"
UNLISTED = "unlisted"

LOSS_NAMES = {
    "targeted": "strongest groups first",
    "independent": "each group on its own",
    "random": "groups at random",
    "common": "all evidence together",
}
# What happens to a unit of evidence that fails in a mode.
MODE_MEANINGS = {
    "lost": "a group of evidence is replaced by its baseline",
    "wrong": "a group of evidence takes a value that is typical of the training rows",
    "noisy": "a number is too high or too low by a fraction of its standard deviation",
    "stale": "a group of evidence has its value from an earlier time",
    "sentinel": "a field holds a declared error code",
    "outage": "several groups are lost together, as in a recorded outage",
}
# A failure mode, and the failure of a named unit in it.
MODE_WORDS = {
    "lost": ("lost evidence", "a lost {}"),
    "wrong": ("wrong values", "a wrong {}"),
    "noisy": ("noisy values", "noise in {}"),
    "stale": ("stale values", "a stale {}"),
    "sentinel": ("error codes", "an error code in {}"),
    "outage": ("recorded outages", "a recorded outage"),
}
GLOSSARY = {
    "prediction": "The model's answer for one row: a class with a probability.",
    "confidence": "The probability of the predicted class.",
    "confident": "A prediction whose confidence reaches the declared limit, 90% unless said otherwise.",
    "evidence group": "Columns that fail together, by default all columns made from one raw field.",
    "lost": "Evidence is lost when the baseline replaces its values, because the real ones did not arrive.",
    "already missing": (
        "A field without a value in the row. It cannot be lost, so no state changes it; certificates name it."
    ),
    "baseline": "The values that replace lost evidence, fitted on training rows and declared in the protocol.",
    "stable across baselines": (
        "Under each other baseline the share that flips early stays within a factor of 2, or within 2 percentage "
        "points, of the declared one, and at least half of the rows that flip early under either do so under both. "
        "Otherwise the finding depends on the baseline, in number or in rows; with few rows it cannot be decided."
    ),
    "protocol": "What the audit declares before it starts: groups, baseline, severities, depth and decision.",
    "margin": "Log of the predicted class's probability over that of its best competitor, which leads below 0.",
    "flip": "A prediction flips when another class takes the lead.",
    "failure mode": (
        "A way in which one unit of evidence fails: for example, it is lost, wrong or noisy. The protocol declares the "
        "modes, and the values that a unit may take."
    ),
    "exposure to a mode": (
        "1 - exp(-u), where u is the sum over units of the share of the margin that its failure is expected to cost. "
        "Each mode has its own exposure; they are not added up."
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
        "The flip budget: how many groups of the path are lost when the prediction flips. The path is greedy, so k* is "
        "an upper bound on the size of the smallest failing set."
    ),
    "flips early": (
        "A prediction flips early if the loss of one or two groups flips it. The number of such predictions is exact "
        "if all sets of groups were searched. If only the path is known, other pairs of groups may flip more "
        "predictions, and the number is given as a lower bound."
    ),
    "smallest failing set": (
        "The fewest groups whose loss flips a prediction, determined by a search over all sets. By default the search "
        "covers the 1,000 most exposed confident predictions of tree ensembles and linear models."
    ),
    "collapse": "The share of the margin that is lost: 0% on the full record, 100% once the prediction has flipped.",
    "RCMA": (
        "Normalised margin-collapse area, the targeted loss: the mean collapse along the path, including the full "
        "record, so at most K / (K + 1) with K removals."
    ),
    "independent loss": "The sum over groups of the share of the margin that the loss of the group alone costs.",
    "random loss": (
        "The share of the margin lost if every group is lost independently with the same rate, by the mean over the "
        "rates 10%, 30% and 50%. It is approximated from the loss of each group alone and the loss of all."
    ),
    "common loss": "The mean collapse over the severities when all evidence fades together.",
    "lambda*": (
        "The smallest severity of a gradual degradation that flips the prediction: at 0.3, evidence moved 30% of the "
        "way to the baseline is enough."
    ),
    "exposure": (
        "1 - exp(-u), where u is the weighted sum of targeted loss (RCMA), independent loss, common loss and random "
        "loss: near 0 for a prediction that rests on much evidence, near 1 for one that rests on little. It ranks the "
        "cases."
    ),
    "exposed": (
        "A prediction with a high exposure; the exposed corner contains the most exposed fifth of the confident "
        "predictions."
    ),
    "FDS": (
        "Fragility dominance score, the paper's: 1 - exp(-u), where u is the weighted sum of RCMA, 1 / k* and the mean "
        "of 1 / lambda*. Between 0 and 1."
    ),
    "brittle": "A prediction that breaks under held-out stress, which no score uses; only stress labels show it.",
    "95% interval": (
        "Wilson's for a share; for a difference, Tango's if both shares are of the same rows, else Newcombe's. It says "
        "how far the share may lie from that of many more rows drawn like these."
    ),
    "certificate": "What the audit claims about one prediction; anyone with the model and the row can recompute it.",
}


def none_up_to(size: int) -> str:
    """Return the state of a search that proved that no set of up to ``size`` groups fails."""
    return f"none up to {size}, proved"
