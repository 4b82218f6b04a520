"""What the page of recipes cannot run itself: its function for Spark ML, and its client with a broken service."""

from __future__ import annotations

import re
import shutil
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pandas as pd
import pytest
from places import REPOSITORY

import fragility as fg

PAGE = REPOSITORY / "docs" / "guide" / "recipes.md"


def take_function(name: str) -> Any:
    """A function of the page, as it stands there."""
    code = next(
        block
        for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
        if f"def {name}(" in block
    )
    start = code.index(f"def {name}(")
    stop = re.search(r"\n\S", code[start + 1 :])
    namespace: dict[str, Any] = {"np": np}
    exec("import json, time, urllib.request\n" + code[start : start + 1 + stop.start() if stop else None], namespace)
    return namespace[name]


class Broken(BaseHTTPRequestHandler):
    """Answers with the next of the declared codes; a code of 0 hangs up."""

    codes: tuple[int, ...] = ()
    asked: list[int] = []  # noqa: RUF012  (of one test at a time)

    def do_POST(self) -> None:
        code = self.codes[min(len(self.asked), len(self.codes) - 1)]
        self.asked.append(code)
        sent = self.rfile.read(int(self.headers["Content-Length"]))
        if code == 0:
            self.close_connection = True
            return
        self.send_response(code)
        self.end_headers()
        rows = sent.count(b"[") - 2
        self.wfile.write(b"[" + b", ".join([b"[0.25, 0.75]"] * rows) + b"]")

    def log_message(self, *words: Any) -> None:
        pass


class Service:
    """The service of the page, over HTTP."""

    def __init__(self, address: str) -> None:
        self.address = address

    def post(self, body: str, timeout: float) -> bytes:
        return urllib.request.urlopen(self.address, body.encode(), timeout).read()


@pytest.fixture
def address():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Broken)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Broken.asked = []
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("codes", "requests", "fails"), [((503, 0, 200), 5, False), ((400,), 1, True), ((500,), 2, True)]
)
def test_the_client_sends_batches_and_tries_again_only_after_errors_that_pass(codes, requests, fails, address):
    service = Service(address)
    ask, rows = take_function("ask_service"), pd.DataFrame({"a": range(5), "b": [1.5, None, 2.0, 3.0, 4.0]})
    Broken.codes = codes
    tries = 2 if codes == (500,) else 4
    if fails:
        with pytest.raises(urllib.error.HTTPError):
            ask(rows, service, batch=2, tries=tries, timeout=5.0)
    else:
        assert ask(rows, service, batch=2, tries=tries, timeout=5.0).shape == (5, 2)
    assert len(Broken.asked) == requests


@pytest.mark.slow
def test_a_spark_model_behind_the_function_of_the_page():
    pytest.importorskip("pyspark")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java")
    from pyspark.ml import Pipeline
    from pyspark.ml.classification import LogisticRegression
    from pyspark.ml.feature import StringIndexer, VectorAssembler
    from pyspark.sql import SparkSession

    X, y = fg.load_credit_g()
    X = X[["duration", "age", "housing"]]
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        stages = [
            StringIndexer(inputCol="housing", outputCol="code", handleInvalid="keep"),
            StringIndexer(inputCol="label", outputCol="index", stringOrderType="alphabetAsc"),
            VectorAssembler(inputCols=["duration", "age", "code"], outputCol="features"),
            LogisticRegression(labelCol="index"),
        ]
        fitted = Pipeline(stages=stages).fit(spark.createDataFrame(X[:300].assign(label=y[:300].astype(str))))
        fitted = type(fitted)([stage for k, stage in enumerate(fitted.stages) if k != 1])  # labels are not asked for
        ask = take_function("ask_spark")
        model = fg.Model.wrap(lambda rows: ask(rows, spark, fitted), classes=["bad", "good"])
        certs = fg.audit(model, X[300:303], fg.Protocol.fit(model, X[:300]))
    finally:
        spark.stop()
    assert len(certs) == 3 and certs.engine == "blackbox"
