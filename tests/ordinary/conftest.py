"""Where the models of a run are kept: each is fitted once, whichever worker needs it first."""

import pytest


@pytest.fixture(scope="session")
def fitted_models(tmp_path_factory):
    """A folder that the workers of a run share."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if own.name.startswith("popen-") else own) / "ordinary-models"
    folder.mkdir(exist_ok=True)
    return folder
