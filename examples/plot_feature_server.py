"""
Decide on the answer of a feature server
========================================

A feature store such as Feast says of each value whether it was there, and how old it is. A guard asks which fields of a
row are missing and which are stale. A few lines turn one into the other.
"""

# %%
import datetime as dt

from credit import X_test, X_train, fit_pipeline
from sklearn.ensemble import HistGradientBoostingClassifier

import fragility as fg

model = fit_pipeline(HistGradientBoostingClassifier(random_state=0))
protocol = fg.Protocol.fit(model, X_train)

# %%
# The reader
# ----------
# ``response`` is the JSON of Feast's ``/get-online-features``. A value is stale if the server says so, or if it is
# older than ``max_age`` whatever the server says, because an expired value may be served as ``PRESENT``. Feast gives
# 1970-01-01 where it knows no time; such a value has no age. What the server does not hold comes from ``known``.
SERVED = ("PRESENT", "OUTSIDE_MAX_AGE")  # other statuses come without a value: NOT_FOUND, NULL_VALUE, INVALID
UNKNOWN_TIME = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def read_features(
    response: dict, known: list[dict], now: dt.datetime, max_age: dt.timedelta
) -> tuple[list, list, list]:
    """Return the rows, and the missing and the stale fields of each row."""
    rows = [dict(row) for row in known]
    stale = [set() for _ in rows]
    for name, feature in zip(response["metadata"]["feature_names"], response["results"], strict=True):
        cells = zip(feature["values"], feature["statuses"], feature["event_timestamps"], strict=True)
        for row, aged, (value, status, time) in zip(rows, stale, cells, strict=True):
            row[name] = value if status in SERVED else None
            made = dt.datetime.fromisoformat(time)
            too_old = status == "OUTSIDE_MAX_AGE" or (made > UNKNOWN_TIME and now - made > max_age)
            if too_old and row[name] is not None:
                aged.add(name)
    missing = [{name for name, value in row.items() if value is None} for row in rows]
    return rows, missing, stale


# %%
# Three applications, of which the server knows two fields
# --------------------------------------------------------
now = dt.datetime(2026, 3, 3, 12, tzinfo=dt.UTC)
response = {
    "metadata": {"feature_names": ["duration", "checking_status"]},
    "results": [
        {
            "values": [24, 36, 12],
            "statuses": ["PRESENT", "PRESENT", "OUTSIDE_MAX_AGE"],
            "event_timestamps": ["2026-03-03T08:00:00Z", "2026-03-01T08:00:00Z", "2026-01-05T08:00:00Z"],
        },
        {
            "values": [None, "<0", "no checking"],
            "statuses": ["NOT_FOUND", "PRESENT", "PRESENT"],
            "event_timestamps": ["1970-01-01T00:00:00Z", "2026-03-03T08:00:00Z", "1970-01-01T00:00:00Z"],
        },
    ],
}
known = X_test[:3].drop(columns=response["metadata"]["feature_names"]).to_dict("records")
rows, missing, stale = read_features(response, known, now, max_age=dt.timedelta(hours=24))
assert missing == [{"checking_status"}, set(), set()]
assert stale == [set(), {"duration"}, {"duration"}]

# %%
# What would knowing them have changed?
# -------------------------------------
checks = fg.Guard(model, protocol).check_rows(rows, missing, stale)
for check in checks:
    print(check, end="\n\n")

# %%
# The probability that the decision would be another one, had the field been known.
import matplotlib.pyplot as plt

labels = [f"{check.decision}, without {', '.join((*check.missing, *check.stale))}" for check in checks]
figure, ax = plt.subplots(figsize=(7, 2.4), layout="constrained")
ax.barh(labels, [check.p_change for check in checks])
ax.invert_yaxis()
ax.set(xlabel="p_change", title="How likely the unknown value changes the decision", xlim=(0, 1))
