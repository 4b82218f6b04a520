"""Does a score put the brittle cases first?

A ranking score s gives every prediction a number; the metrics ask how well descending s finds the brittle rows among
the high-confidence ones.

metrics      AUROC, captures, area under the residual-risk curve, and their uncertainty; quality of probabilities
scores       scores from probabilities, from certificates, along other removal orders, and from SHAP values
comparison   every score against the same brittle labels
evaluating   labels, scores and verdict in one call
"""
