"""What `/metrics` counts, in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

LATENCIES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SHARES = tuple(tenth / 10 for tenth in range(1, 11))
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The counters of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        more: dict[str, Any] = {"registry": self.registry}
        name = "fragility_"
        self.latency = Histogram(
            name + "request_seconds", "Time from a request to its answer", ["endpoint"], buckets=LATENCIES, **more
        )
        self.answers = Counter(name + "answers", "Answers by endpoint and status", ["endpoint", "status"], **more)
        self.errors = Counter(name + "errors", "Requests refused, by the code of the error", ["code"], **more)
        self.decisions = Counter(name + "decisions", "Rows decided, by class", ["decision"], **more)
        self.exposure = Histogram(name + "exposure", "Exposure of the rows decided", buckets=SHARES, **more)
        self.missing = Counter(name + "missing_fields", "Rows decided without a field", ["field"], **more)
        self.stale = Counter(name + "stale_fields", "Rows decided on a stale value of a field", ["field"], **more)
        self.p_change = Histogram(
            name + "p_change", "Probability that unknown fields would change a decision", buckets=SHARES, **more
        )
        self.review = Counter(name + "reviews", "Rows that the policy sends to review", **more)
        self.batch = Histogram(name + "batch_rows", "Rows answered together", buckets=BATCHES, **more)
        self.queue = Gauge(name + "queue_rows", "Rows that wait for an answer", **more)
        self.logged = Counter(name + "logged_rows", "Rows appended to the log", **more)
        self.sealed = Counter(name + "sealed_rows", "Rows sealed into the log's audit folders", **more)
        self.pending = Gauge(name + "pending_rows", "Rows of the log that no seal holds yet", **more)

    def count_event(self, event: dict[str, Any]) -> None:
        """Count a row that was decided, given as the event that the log keeps of it."""
        self.decisions.labels(str(event["decision"])).inc()
        self.exposure.observe(event["exposure"])
        for counter, names in ((self.missing, event["missing"]), (self.stale, event["stale"])):
            _count_names(counter, names)
        if event["p_change"] is not None:
            self.p_change.observe(event["p_change"])
        if event["review"]:
            self.review.inc()

    def write(self) -> bytes:
        """Return the text of `/metrics`."""
        return generate_latest(self.registry)


def _count_names(counter: Counter, names: Iterable[str]) -> None:
    for name in names:
        counter.labels(name).inc()
