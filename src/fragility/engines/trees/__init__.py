"""The tree engine: a whole certificate from a tree ensemble without materialising one stressed row.

    forest    Forest, a tree ensemble as flat arrays, how it is assembled from trees, the flags of its tests
    recoding  what a library makes of a cell before its trees compare it: categories, rounding
    terms     models that add up tables over few columns, as trees and as flat tables
    readers   from each library's fitted model to a Forest
    tables    scores of those by look-ups
    scoring   what a protocol means for a forest, the kernel that scores it, and how raw scores are read
    engine    what `engines.choice` calls: which models, their traces, their answers

The compiled kernels are in `engines.kernels`.

``readers`` turns a fitted ensemble into one flat ``Forest``. Every split becomes a *test*: go right iff v > t, where v
is the cell as the library compares it (float32 or float64). Strict comparisons, zero-as-missing, category sets and
default directions are all brought to that form exactly:

    library              compares                      as a test
    XGBoost              left iff float32 v < t        t' = the float32 just below t
    LightGBM             left iff float64 v <= t       t' = t; NaN as 0 or to the default side; zero band; sets
    scikit-learn trees   left iff float32 v <= t       t' = t (float64)
    HistGradientBoosting left iff float64 v <= t       t' = t; sets
    CatBoost             right iff float32 v > border  t' = border; tests shared by a whole level; sets of one category
    interpret            right iff float64 v >= cut    t' = the float64 just below cut; categories as numbers

Raw scores are sums of leaf values in tree order, in the library's own precision, starting from its base score; the link
(sigmoid, softmax, mean of leaf probabilities) is applied in float64, as the model adapter does.
"""
