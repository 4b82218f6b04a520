"""
Which confident decisions of a credit model rest on one field?
==============================================================

An ordinary scikit-learn pipeline decides about loans. Some of its confident decisions stand on many fields, some on
one. The audit tells them apart.
"""

# %%
# A model as anyone would train it
# --------------------------------
# Categories one-hot, numbers scaled, boosted trees. Nothing here knows about fragility.
from sklearn.compose import make_column_transformer
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import fragility as fg

X, y = fg.load_credit_g()
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=300, stratify=y, random_state=0)
nominal = list(X.select_dtypes(exclude="number"))
encode = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), nominal), remainder=StandardScaler())
model = make_pipeline(encode, GradientBoostingClassifier(random_state=0)).fit(X_train, y_train)
print(f"accuracy {model.score(X_test, y_test):.2f}")

# %%
# Declare what may fail, then audit
# ---------------------------------
# The protocol traces every column of the encoded matrix back to the field it came from, so that a field is lost whole.
# A lost field takes the value of a typical applicant: its most frequent category, or the mean of its numbers.
protocol = fg.Protocol.fit(model, X_train)
certs = fg.audit(model, X_test, protocol)
certs

# %%
# The confident decisions that rest on least
# ------------------------------------------
for certificate in certs.most_fragile(5, min_confidence=0.9):
    print(certificate.sentence())

# %%
# One of them, step by step: the field that matters most goes first, and the margin left is written beside it.
print(certs.most_fragile(1)[0])

# %%
# All of them at once
# -------------------
# To the right are confident decisions; those that are also high up are the ones to look at.
fg.FragilityMapDisplay.from_certificates(certs, min_confidence=0.9)

# %%
# Two decisions with the same confidence need not have anything else in common.
table = certs.to_pandas()
confident = table[table["confidence"] >= 0.9]
fg.CollapseDisplay.from_certificates(certs, rows=[confident["fds"].idxmax(), confident["fds"].idxmin()])
