"""Counterfactual fragility certificates for tabular classifiers.

For one prediction of a trained model: under a declared evidence-failure protocol, what trajectory makes this
prediction lose support? The answer is a certificate: finite, deterministic, and recomputable by anyone who has
the model, the rows and the protocol.
"""

from fragility.bundled import load_credit_g
from fragility.version import __version__

__all__ = ["__version__", "load_credit_g"]
