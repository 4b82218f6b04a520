"""
Two models, equally accurate: which one rests on more?
======================================================

Two candidates for deployment are about equally accurate. Audit both on the same rows under protocols of the same shape
and compare what their confident predictions rest on.
"""

# %%
from credit import X_test, X_train, fit_pipeline, y_test
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.linear_model import LogisticRegression

import fragility as fg

models = {
    "logistic regression": fit_pipeline(LogisticRegression(max_iter=1000)),
    "boosted trees": fit_pipeline(GradientBoostingClassifier(random_state=0)),
}

# %%
# The same question to both
# -------------------------
audits = {name: fg.audit(model, X_test, fg.Protocol.fit(model, X_train)) for name, model in models.items()}
for name, certs in audits.items():
    table = certs.to_pandas()
    sure = table[table["confidence"] >= 0.9]
    print(
        f"{name:<20} accuracy {models[name].score(X_test, y_test):.2f}   {len(sure):>3} confident, "
        f"of these {(sure['flip_budget'] <= 2).mean():.0%} flip within two fields, mean RCMA {sure['rcma'].mean():.2f}"
    )

# %%
# What the confident predictions lose on the way
# ----------------------------------------------
import matplotlib.pyplot as plt
import numpy as np

figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
for name, certs in audits.items():
    claims = certs.claims
    sure = claims.confidence >= 0.9
    curve = claims.path_collapse[sure]
    steps = np.arange(curve.shape[1])
    ax.plot(steps, np.median(curve, axis=0), marker="o", label=name)
    ax.fill_between(steps, *np.quantile(curve, [0.25, 0.75], axis=0), alpha=0.2)
ax.set(xlabel="fields removed, strongest first", ylabel="share of the margin lost", ylim=(0, 1.02))
ax.set_title("Confident predictions: median and quartiles")
ax.legend()
