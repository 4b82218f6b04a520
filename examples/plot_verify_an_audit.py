"""
Verify an audit that someone else made
======================================

A colleague hands over a folder of certificates, the model and the rows. Nothing in the folder has to be believed: all
of it can be recomputed.
"""

# %%
# What the colleague did
# ----------------------
import tempfile
from pathlib import Path

from credit import X_test, X_train, fit_pipeline
from sklearn.linear_model import LogisticRegression

import fragility as fg

model = fit_pipeline(LogisticRegression(max_iter=1000))

folder = Path(tempfile.mkdtemp()) / "audit"
fg.audit(model, X_test, fg.Protocol.fit(model, X_train, depth=5)).save(folder)

# %%
# What you do
# -----------
# Every claim is computed anew through the model's own probabilities, whatever engine made the certificates.
print(fg.verify(folder, model, X_test))

# %%
# Only some of the rows
# ---------------------
# Someone who shows the robust cases only cannot hide that there were others.
certs = fg.Certificates.load(folder)
robust_first = certs.to_pandas()["fds"].argsort()
certs.take(robust_first[:10]).save(folder.parent / "selection")
print(fg.verify(folder.parent / "selection", model, X_test))

# %%
# Another model
# -------------
# A model with other parameters has another fingerprint, even if it predicts much the same.
other = fit_pipeline(LogisticRegression(C=0.5, max_iter=1000))
print(fg.verify(folder, other, X_test))

# %%
# What a sample is worth
# ----------------------
# Recomputing takes as long as auditing. A random sample is cheaper, and how likely a forger escapes it is known.
some = fg.verify(folder, model, X_test, sample=60)
print(some.verdict)

# %%
import matplotlib.pyplot as plt

forged = range(1, 31)
figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
for size in (30, 60, 120):
    checked = fg.verify(folder, model, X_test, sample=size)
    ax.plot(forged, [checked.escape_probability(k) for k in forged], label=f"{size} of 300 recomputed")
ax.set(xlabel="forged certificates among the 300", ylabel="chance that none is noticed", ylim=(0, 1))
ax.legend()
