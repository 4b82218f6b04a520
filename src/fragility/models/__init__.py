"""Models: one door to anything that gives class probabilities.

adapter       Model: classes, preprocessing and final estimator, probabilities, own labels
wrappers      the fitted estimators within pipelines, searches, calibrators, ensembles and votes
outputs       how each library's output becomes probabilities in double precision, and these a class
fingerprint   a digest of what a model computes
descriptions  what a fingerprint takes of each value
onnx_graphs   what an ONNX file may hold, and the session that runs it
onnx_classifier  an ONNX file as a classifier
soundness     whether trees are trees, and booster files are safe to load
loading       model files, and what it takes to trust them
mlflow_models the folders of MLflow models, and models that MLflow alone can load
"""

from fragility.models.adapter import Model
from fragility.models.outputs import ClassLabel, Decision

__all__ = ["ClassLabel", "Decision", "Model"]
