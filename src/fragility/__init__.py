"""Counterfactual fragility certificates for tabular classifiers.

For one prediction of a trained model: under a declared evidence-failure protocol, what trajectory makes this prediction
lose support? The answer is a certificate: finite, deterministic, and recomputable by anyone who has the model, the rows
and the protocol.
"""

import lazy_loader

# The stub beside this file lists the public names. Each loads when it is first used: pandas, scikit-learn and the rest
# take over a second, and whoever asks for the version or mistypes an option should not wait for them.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
