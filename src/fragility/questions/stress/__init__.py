"""The label channel: held-out random stress that says which confident predictions really break.

Nothing here is used by any certificate or ranking score.

draws        counter-based random numbers
stressors    how a row is changed, given its random numbers
declaration  `Stress`: which stressors, how often, by which rule; logs of outages
labels       `label_brittle`
"""
