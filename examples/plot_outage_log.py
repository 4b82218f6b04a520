"""
Stress a model with your own outage log
=======================================

Fields do not fail one by one: a bureau is down and four of them are gone. Where such events are on record, they can be
replayed on every prediction.
"""

# %%
import pandas as pd
from credit import X_test, X_train, fit_pipeline
from sklearn.ensemble import GradientBoostingClassifier

import fragility as fg
from fragility.analysis.ranking.comparison import compare_scores

model = fit_pipeline(GradientBoostingClassifier(random_state=0))
protocol = fg.Protocol.fit(model, X_train)

# %%
# The log: one line for each field that an event took away
# --------------------------------------------------------
log = pd.DataFrame(
    [
        ("bank feed down, 3 March", "checking_status"),
        ("bank feed down, 3 March", "savings_status"),
        ("bank feed down, 9 May", "checking_status"),
        ("bank feed down, 9 May", "savings_status"),
        ("bureau timeout, 12 June", "credit_history"),
        ("bureau timeout, 12 June", "existing_credits"),
        ("form without employment", "employment"),
    ],
    columns=["event", "field"],
)

# %%
# Which confident decisions would not have survived those events?
# ---------------------------------------------------------------
# A decision counts as broken if one of the events drawn for it flips it, or takes half of its margin (``rule="any"``).
stress = fg.Stress.from_outages(log, rule="any", tau_confidence=0.8)
labels = fg.label_brittle(model, X_test, protocol, stress)
print(labels.counts())

# %%
# Did the certificates know? They never saw the log
# -------------------------------------------------
# FDS should put the rows that broke to the front of the confident ones.
certs = fg.audit(model, X_test, protocol)
report = compare_scores(certs, labels)
print(report)

# %%
# FDS of the confident rows, those that broke and those that did not.
import matplotlib.pyplot as plt
import numpy as np

fds = certs.claims.fds
sure, broke = labels.high_confidence, labels.brittle
figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
bins = np.linspace(0, fds[sure].max(), 25)
ax.hist([fds[sure & ~broke], fds[sure & broke]], bins=bins, stacked=True, label=["stood", "broke"], color=["C0", "C1"])
ax.set(xlabel="fragility (FDS)", ylabel="confident decisions", title="Which of them the recorded events overturn")
ax.legend()
