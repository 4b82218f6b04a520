"""The words of the report and what they mean; the guide's glossary has the same words."""

from __future__ import annotations

GLOSSARY = {
    "prediction": "What the model answers for one row: a class with a probability.",
    "confidence": "The probability of the predicted class.",
    "confident": "A prediction whose confidence reaches the declared limit, 90% unless said otherwise.",
    "evidence group": "Columns that fail together, by default all columns made from one raw field.",
    "lost": "Evidence is lost when its values are replaced by the baseline, because the real ones failed to arrive.",
    "baseline": "The values that replace lost evidence, fitted on training rows and declared in the protocol.",
    "stable across baselines": (
        "Under each other baseline the share that flips early stays within a factor of 2, or within 2 percentage "
        "points, of the declared one; else the finding depends on the baseline."
    ),
    "protocol": "What the audit declares before it starts: groups, baseline, severities, depth and decision.",
    "margin": "Log of the predicted class's probability over that of its best competitor; below 0 it has lost.",
    "flip": "A prediction flips when another class takes the lead.",
    "path": "The groups in the order in which they are removed: largest drop of the margin first.",
    "k*": (
        "The flip budget: how many groups of the path are lost when the prediction flips. Found strongest first, so it "
        "is an upper bound on the fewest that would do."
    ),
    "flips early": "A prediction with k* of 1 or 2: it flips when one or two groups are lost.",
    "smallest failing set": (
        "The fewest groups whose loss flips a prediction, found by searching all sets. By default those of the 1,000 "
        "most exposed confident predictions of tree ensembles and linear models are searched."
    ),
    "collapse": "The share of the margin that is lost: 0% on the full record, 100% once the prediction has flipped.",
    "RCMA": "Normalised margin-collapse area: the mean collapse along the path. The targeted loss.",
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
