"""
One case, side by side with other tools
=======================================

Two predictions of a credit model, both 96% sure. What do SHAP, a counterfactual search, conformal prediction, a noise
test and a drift monitor say about them, and what does a certificate add? The guide's page "How it compares" says
which tool answers which question.
"""

# %%
import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import fragility as fg

X, y = fg.load_credit_g()
X_train, X_valid, X_test = X[:500], X[500:700], X[700:]
y_train, y_valid = y[:500], y[500:700]
nominal = list(X.select_dtypes(exclude="number"))
encode = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), nominal), remainder=StandardScaler())
model = make_pipeline(encode, GradientBoostingClassifier(random_state=0)).fit(X_train, y_train)
protocol = fg.Protocol.fit(model, X_train)

pair = X_test.loc[[739, 824]]
print(pd.Series(model.predict(pair), pair.index).to_dict(), model.predict_proba(pair).max(axis=1).round(3))

# %%
# SHAP: the contributions to the log-odds of *good*
# -------------------------------------------------
# They are summed by field; the three largest are shown. The credit history counts most for 739, and the checking
# account about as much for either row. Whether one of these fields alone decides is another question.
import shap

values = shap.TreeExplainer(model[-1]).shap_values(model[:-1].transform(pair))
field = {column: group.name for group in protocol.groups for column in group.columns}
by_field = pd.DataFrame(values.T, [column.name for column in protocol.columns], pair.index).groupby(field).sum()
for row in pair.index:
    print(row, by_field[row].round(2).sort_values(key=abs, ascending=False).head(3).to_dict())

# %%
# Counterfactual search: every field, set to every value that occurs in training
# ------------------------------------------------------------------------------
# Both have a way to another answer: 739 without a checking account, 824 with a loan of about 4,450 instead of 3,780.
# For 739 the change is the same as a loss, since "no checking" is the most frequent value, which replaces a status
# that does not arrive. A search over all values finds it too; it does not say that this value is the one that an
# outage brings.
for row in pair.index:
    changes = [(name, value) for name in X for value in X_train[name].unique()]
    copies = X_test.loc[[row] * len(changes)].reset_index(drop=True)
    for i, (name, value) in enumerate(changes):
        copies.loc[i, name] = value
    flips = model.predict(copies) != model.predict(pair.loc[[row]])
    print(row, [f"{name} = {value}" for (name, value), flip in zip(changes, flips, strict=True) if flip])

# %%
# Conformal prediction: the classes that cannot be ruled out at an error rate of 10%
# ----------------------------------------------------------------------------------
# It is calibrated on the validation rows. One class each, and no difference between the two: the guarantee is about
# the share of sets that miss, over many rows. Calibrating each class separately (Mondrian) would give the guarantee
# within a class, and still not for one row.
p_true = model.predict_proba(X_valid)[np.arange(len(y_valid)), model.classes_.searchsorted(y_valid)]
level = np.ceil(0.9 * (len(y_valid) + 1)) / len(y_valid)
limit = np.quantile(1 - p_true, level, method="higher")
for row, p in zip(pair.index, model.predict_proba(pair), strict=True):
    print(row, model.classes_[1 - p <= limit].tolist())

# %%
# Noise test: how many of 1,000 noisy copies change the prediction?
# -----------------------------------------------------------------
# Every number gets normal noise of a tenth of a standard deviation. By this test 739 is the steadier one: it depends
# on a category, and noise does not touch it.
numbers = list(X.select_dtypes("number"))
noise = np.random.default_rng(0).normal(size=(1000, len(numbers))) * 0.1 * X_train[numbers].std().to_numpy()
for row in pair.index:
    copies = X_test.loc[[row] * 1000].astype(dict.fromkeys(numbers, float))
    copies[numbers] += noise
    print(row, (model.predict(copies) != model.predict(pair.loc[[row]])).sum())

# %%
# Drift monitor: the population stability index of the checking account
# ---------------------------------------------------------------------
# Training against test rows; below 0.1 counts as stable. Nothing has drifted, and it says nothing about either row.
old, new = (rows["checking_status"].value_counts(normalize=True) for rows in (X_train, X_test))
print(round(((old - new) * np.log(old / new)).sum(), 3))

# %%
# Certificate: each field is lost in turn, the strongest first, and takes its typical value
# -----------------------------------------------------------------------------------------
# This tells the two apart: if the status of the checking account does not arrive, the application that was rejected
# with 96% confidence is accepted. For 824 all sets of fields were searched, and none flips it. (The typical applicant
# is *good*, so predictions of *bad* have more to lose here; another baseline may say otherwise, and an audit of files
# tries them.)
certs = fg.audit(model, X_test, protocol)
for row in pair.index:
    print(row, certs.by_id(row).sentence())
assert certs.by_id(739).flip_budget == 1
fg.CollapseDisplay.from_certificates(certs, rows=[X_test.index.get_loc(row) for row in pair.index])

# %%
# Stability intervals: how far may one field move, all others unchanged?
# ----------------------------------------------------------------------
# For 824 this sharpens the answer of the counterfactual search, which could try only the values of the training rows:
# the nearest of them that flips it is 4,439.
intervals = fg.find_stability_intervals(model, pair, protocol, ["credit_amount"])
for place, row in enumerate(pair.index):
    print(row, intervals.describe(place, "credit_amount"))
