"""Hardening: models trained again so that their predictions rest on more of their evidence (SPEC section 13).

twins       degraded copies of training rows
training    `harden`, and which models it takes
classifier  the same as a meta-estimator; the largest rate that costs little
assessment  what a model's predictions rest on, before and after; whether the gain carries over to other failures
"""
