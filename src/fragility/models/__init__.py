"""Models: one door to anything that gives class probabilities.

adapter       Model: classes, preprocessing and final estimator, probabilities, labels
wrappers      the fitted estimators within pipelines, searches, calibrators, ensembles and votes
outputs       how each library's output becomes probabilities in double precision, and these a class
fingerprint   a digest of what a model computes
descriptions  the content of each value that enters a fingerprint
onnx_graphs   checks of ONNX files, and the session that runs one
onnx_classifier  an ONNX file as a classifier
soundness     checks that trees are valid and that booster files are safe to load
loading       loading model files, and which of them require trust
mlflow_models the folders of MLflow models, and models that only MLflow can load
"""

from fragility.models.adapter import Model
from fragility.models.outputs import ClassLabel, Decision

__all__ = ["ClassLabel", "Decision", "Model"]
