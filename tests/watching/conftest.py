import pytest
from watched_logs import write_log


@pytest.fixture(scope="session")
def quiet_log(tmp_path_factory):
    return write_log(tmp_path_factory.mktemp("quiet") / "log")


@pytest.fixture(scope="session")
def broken_log(tmp_path_factory):
    """Income is missing in 8% of decisions from day 9 on, and debt was stale in 20% on days 8 and 9."""
    folder = tmp_path_factory.mktemp("broken") / "log"
    return write_log(folder, outage=("income", 9, 0.08, 99), stale=("debt", 8, 0.2, 10))
