"""Hardening: models trained again so that their predictions rest on more of their evidence (SPEC section 13).

acceptance  which models can be hardened
twins       degraded copies of training rows
training    `harden`
classifier  the same as a meta-estimator
assessment  what a model's predictions rest on, before and after; whether the gain carries over to other failures
choice      the largest rate that costs little
"""
