"""
Which confident decisions of a credit model rest on one field?
==============================================================

An ordinary scikit-learn pipeline decides about loans. Some of its confident decisions stand on many fields, some on
one. The audit tells them apart.
"""

# %%
# A model as anyone would train it
# --------------------------------
# Categories one-hot, numbers scaled, boosted trees. Nothing in the model knows about fragility. The data and the
# pipeline are the same in all examples; they are made in ``credit.py``, beside this file:
#
# .. literalinclude:: ../../examples/credit.py
#    :language: python
from credit import X_test, X_train, fit_pipeline, y_test
from sklearn.ensemble import GradientBoostingClassifier

import fragility as fg

model = fit_pipeline(GradientBoostingClassifier(random_state=0))
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
