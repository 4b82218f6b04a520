"""The credit data and the pipeline that the examples share."""

from sklearn.base import ClassifierMixin
from sklearn.compose import make_column_transformer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import fragility as fg

X, y = fg.load_credit_g()
X_train, X_test, y_train, y_test = X[:700], X[700:], y[:700], y[700:]


def fit_pipeline(classifier: ClassifierMixin) -> Pipeline:
    """Fit the classifier behind one-hot categories and scaled numbers."""
    nominal = list(X.select_dtypes(exclude="number"))
    encode = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), nominal), remainder=StandardScaler())
    return make_pipeline(encode, classifier).fit(X_train, y_train)
