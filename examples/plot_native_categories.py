"""
LightGBM with its own categories and missing values
===================================================

Many deployed models take the raw table: text as pandas categories, gaps as NaN. There is no preprocessing to trace, so
the evidence space is the table itself, and a lost field is what the model meets in production: a missing value.
"""

# %%
# The model
# ---------
import lightgbm as lgb
from credit import X, y_train

import fragility as fg

text = X.select_dtypes(exclude="number").columns
table = X.astype(dict.fromkeys(text, "category"))
X_train, X_test = table[:700], table[700:]
model = lgb.LGBMClassifier(n_estimators=60, num_leaves=15, random_state=0, verbose=-1).fit(X_train, y_train)

# %%
# Lost means missing
# ------------------
# ``space="raw"`` is chosen by itself where a model takes categories. A category cannot be half lost: under a gradual
# degradation it keeps its value below severity 0.5 and is gone from there on. These rows have no missing values, so a
# warning says that the model has never seen one: its answer is whatever the booster's rule for missing values gives.
protocol = fg.Protocol.fit(model, X_train, baseline="missing")
print(protocol.space, "space,", len(protocol.groups), "groups")
certs = fg.audit(model, X_test, protocol)
for certificate in certs.most_fragile(3, min_confidence=0.9):
    print(certificate.sentence())

# %%
# What a typical applicant would change
# -------------------------------------
# The same rows under another notion of loss: each lost field takes its most frequent value (numbers their mean).
# Certificates are relative to their protocol, and the two answer different questions.
typical = fg.audit(model, X_test, fg.Protocol.fit(model, X_train))
for name, audited in {"missing": certs, "typical value": typical}.items():
    claims = audited.to_pandas()
    sure = claims[claims["confidence"] >= 0.9]
    print(
        f"{name:<14} {len(sure)} confident, {(sure['flip_budget'] == 1).mean():.0%} of them flip when one field is lost"
    )

# %%
fg.FragilityMapDisplay.from_certificates(certs)
