"""The cases of an audit as tables of a temporary DuckDB file.

The files of an audit may hold millions of rows, so they are never loaded. When an audit is opened, their digests are
compared with the manifest's, and the few columns by which cases are found are copied into the temporary file, whose
memory is bounded. What reviewers decided lies in a small table beside the cases, brought up to date from the store
before every question that asks about it.

The file holds fields of the audited rows, so it must not stay behind. It is removed when the workbench ends, also by a
signal. A process that is killed cannot do that, so each workbench removes at its start what killed ones left: folders
of the same user whose lock is free. The system takes a lock from a process that ends, however it ends.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fragility.analysis.policy import PREDICTED, ReviewPolicy
from fragility.apps.review.store import Store
from fragility.audits import Manifest, StoredAudit
from fragility.audits.folder import BlockReader, read_manifest, read_protocol, read_table
from fragility.base.errors import CertificateError, DataError, first_line
from fragility.blocks.modes import ModesDeclaration
from fragility.protocol import Protocol
from fragility.scores import REHEARSAL

try:
    import fcntl
except ImportError:  # Windows: a file in use cannot be removed there, and a killed process leaves its folder
    fcntl = None  # type: ignore[assignment]


MEMORY = "128MB"  # that DuckDB may hold; beyond it, it writes to its temporary folder
THREADS = 2
REMEMBERED = 1000  # answers
NEEDED = ("id", "predicted", "confidence", "flip_budget", "flipped", "fds", "exposure", "path", "digest")

# What `case_state` says of a case, for many at once. A case is found by its place in this audit, or by its digest where
# an entry speaks of it in another audit; rows of other audits are passed over.
CHANGED_STATES = """
CREATE TEMP TABLE changed AS
WITH placed AS (
    SELECT DISTINCT n.digest, CASE WHEN n.audit = $audit THEN n.place ELSE c.place END AS place
    FROM named n LEFT JOIN cases c ON n.audit <> $audit AND c.digest = n.digest
), decided AS (
    SELECT digest, count(*) AS people, count(DISTINCT decision) AS kinds, min(decision) AS decision,
        list(reviewer ORDER BY seq) AS reviewers
    FROM standing GROUP BY digest
)
SELECT p.place,
    CASE WHEN d.kinds > 1 THEN 'conflict' WHEN d.kinds = 1 THEN d.decision
        WHEN w.digest IS NOT NULL THEN 'park' ELSE 'open' END AS status,
    coalesce(d.reviewers, []) AS reviewers,
    a.digest IS NOT NULL AND coalesce(d.people, 0) = 1 AS second
FROM placed p LEFT JOIN decided d ON d.digest = p.digest LEFT JOIN parked w ON w.digest = p.digest
    LEFT JOIN asked a ON a.digest = p.digest
WHERE p.place IS NOT NULL
"""


class CaseTables:
    """The cases of one audit folder, as tables of a temporary database."""

    def __init__(
        self, folder: Path, manifest: Manifest, protocol: Protocol, parts: Sequence[tuple[Path, int]],
        policy: ReviewPolicy | None, labels: Any = None,
    ) -> None:  # fmt: skip
        self.folder, self.manifest, self.protocol, self.policy = folder, manifest, protocol, policy
        self._parts = tuple(parts)  # each file, and the place of its first row
        self._blocks = BlockReader(folder, manifest, protocol)
        self._schema = pq.read_schema(parts[0][0])
        self._scratch = Scratch()
        settings: dict[str, str | bool | int | float | list[str]] = {
            "memory_limit": MEMORY,
            "threads": THREADS,
            "temp_directory": f"{self._scratch.path}/spill",
            "autoinstall_known_extensions": "false",  # nothing is ever fetched
            "autoload_known_extensions": "false",
        }
        self._database = duckdb.connect(f"{self._scratch.path}/cases.duckdb", config=settings)
        self._lock = threading.Lock()
        self._known: dict[Any, list[tuple[Any, ...]]] = {}  # answers that cannot change, because an audit does not
        self._seen = 0
        self._field_columns: dict[str, tuple[str, bool]] = {}
        modes = manifest.find_block(ModesDeclaration)
        self.modes = () if modes is None else modes.modes
        missing = [name for name in NEEDED if name not in self._schema.names]
        if missing:
            raise CertificateError(f"the certificate table lacks the column {missing[0]!r}")
        flips_to = "path_predicted[flip_budget + 1]" if "path_predicted" in self._schema.names else "NULL"
        self._database.execute(
            "CREATE TABLE cases (place BIGINT, name VARCHAR, label VARCHAR, confidence DOUBLE, flip_budget INTEGER, "
            "flipped BOOLEAN, exposure DOUBLE, fds DOUBLE, flips_to VARCHAR, failing VARCHAR[], digest VARCHAR, "
            "exposures DOUBLE[])"
        )
        for part, (path, first) in enumerate(self._parts):
            self._database.register("assessed", self._exposures_of_part(part))
            self._database.execute(
                "INSERT INTO cases SELECT file_row_number + ?, CAST(id AS VARCHAR), CAST(predicted AS VARCHAR), "
                "confidence, flip_budget, flipped, exposure, fds, "
                f"CASE WHEN flipped THEN CAST({flips_to} AS VARCHAR) END, "
                "CASE WHEN flipped THEN path[:flip_budget] ELSE [] END, digest, coalesce(a.exposures, []) "
                "FROM read_parquet(?, file_row_number = true) p LEFT JOIN assessed a ON a.row = p.file_row_number",
                [first, str(path)],
            )
            self._database.unregister("assessed")
        self._database.execute("ALTER TABLE cases ADD COLUMN rehearsal DOUBLE")
        self.rehearsed = labels is not None or (policy is not None and policy.by == REHEARSAL)
        if self.rehearsed:
            self._add_rehearsal(labels)
        if policy is not None:
            self._add_policy_scores(policy.by)
        self._database.execute(
            "CREATE TABLE states (place BIGINT, status VARCHAR, reviewers VARCHAR[], second BOOLEAN)"
        )

    def _exposures_of_part(self, part: int) -> pa.Table:
        """Return the exposures to failure modes of the assessed rows of a part, by their place in it."""
        row, exposures = pa.array([], type=pa.int64()), pa.array([], type=pa.list_(pa.float64()))
        if self.modes:
            columns = [f"exposure_{mode}" for mode in self.modes]
            name = self._parts[part][0].name
            ids = read_table(self.folder, self.manifest, name, self.protocol, ["id"])
            joined = self._blocks.add(ids, part, columns)
            known = np.stack([joined.column(name).to_numpy() for name in columns], axis=1)
            row = pa.array(np.flatnonzero(~np.isnan(known).any(axis=1)))
            exposures = pa.array(list(known[row.to_numpy()]), type=pa.list_(pa.float64()))
        return pa.table({"row": row, "exposures": exposures})

    @classmethod
    def open(cls, folder: Path, policy: ReviewPolicy | None = None, labels: Any = None) -> Self:
        """Open an audit; refuse files that are not the ones its manifest names.

        labels: of its rows, with the rehearsal of their stress.
        """
        manifest = read_manifest(folder)
        protocol = read_protocol(folder)  # compares the manifest with its own digest
        if policy is not None:
            _check_policy(policy, manifest, protocol)
            if labels is not None:
                policy.check_rehearsed(labels)
        parts, first = [], 0
        for path in (folder / name for name in manifest.files_of("certificates")):
            try:
                with path.open("rb") as stream:
                    digest = hashlib.file_digest(stream, "sha256").hexdigest()
            except FileNotFoundError as error:
                raise CertificateError(f"{folder} is incomplete: {path.name} is missing") from error
            if f"sha256:{digest}" != (manifest.files or {})[path.name]:
                raise CertificateError(f"{path} was changed after it was written: the manifest names other bytes")
            parts.append((path, first))
            try:
                first += int(pq.read_metadata(path).num_rows)
            except (OSError, ValueError, pa.ArrowException) as error:
                raise CertificateError(f"cannot read {path}: {first_line(error)}") from error
        if first != manifest.rows:
            raise CertificateError(f"{folder} declares {manifest.rows} certificates and holds {first}")
        return cls(folder, manifest, protocol, parts, policy, labels)

    def close(self) -> None:
        self._database.close()
        self._scratch.remove()

    def __len__(self) -> int:
        return self.manifest.rows

    @property
    def audit(self) -> str:
        return self.manifest.root_digest

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(str(label) for label in self.manifest.model.classes)

    def _add_rehearsal(self, labels: Any) -> None:
        """Copy the rehearsal of the labels' stress into the cases."""
        score = StoredAudit(self.folder).score(REHEARSAL, labels=labels)
        self._database.register("given", pa.table({"place": np.arange(len(score)), "score": score}))
        self._database.execute("UPDATE cases SET rehearsal = given.score FROM given WHERE given.place = cases.place")
        self._database.unregister("given")

    def _add_policy_scores(self, by: str) -> None:
        """Copy the score of the review policy into the cases; NULL if a row has none."""
        if by == REHEARSAL:
            self._database.execute("CREATE TABLE scores AS SELECT place, rehearsal AS score FROM cases")
            return
        audit = StoredAudit(self.folder)
        column, first = "confidence" if by == "confidence" else audit.column_ranked_by(by), 0
        sign = -1 if by == "confidence" else 1  # the least confident are the riskiest
        self._database.execute("CREATE TABLE scores (place BIGINT, score DOUBLE)")
        for table in audit.batches([column]):
            places = pa.array(range(first, first + len(table)), type=pa.int64())
            self._database.register("given", pa.table({"place": places, "score": table.column(column)}))
            self._database.execute(f"INSERT INTO scores SELECT place, {sign} * score FROM given")
            self._database.unregister("given")
            first += len(table)

    def _ask(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._database.cursor() as cursor:
            return cursor.execute(sql, list(values)).fetchall()

    def _ask_once(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Answer a question about the audit alone, whose answer never changes."""
        key = sql, tuple(values)
        answer = self._known.get(key)
        if answer is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            answer = self._known[key] = self._ask(sql, values)
        return answer

    # --- the rows' own fields -------------------------------------------------------------------------------

    def add_fields(self, table: pa.Table) -> None:
        """Make the audited rows' fields, in the order of the audit, known to filters."""
        self._field_columns = {
            name: (f"f{i}", pa.types.is_integer(kind) or pa.types.is_floating(kind))
            for i, (name, kind) in enumerate(zip(table.schema.names, table.schema.types, strict=True))
        }
        renamed = table.rename_columns([column for column, _ in self._field_columns.values()])
        renamed = renamed.append_column("place", pa.array(range(len(table)), type=pa.int64()))
        with self._database.cursor() as cursor:
            cursor.register("given", renamed)
            cursor.execute("CREATE TABLE fields AS SELECT * FROM given")
            cursor.unregister("given")

    @property
    def field_names(self) -> tuple[str, ...]:
        return tuple(self._field_columns)

    # --- what was decided -----------------------------------------------------------------------------------

    def catch_up(self, store: Store) -> None:
        """Bring what was decided up to date."""
        with self._lock:
            newest = store.last()
            if newest == self._seen:
                return
            changes = store.changes(since=self._seen)
            with self._database.cursor() as cursor:
                text, number = pa.string(), pa.int64()
                entries = {
                    "named": _rows_table({"digest": text, "audit": text, "place": number}, changes.cases),
                    "standing": _rows_table(
                        {"digest": text, "reviewer": text, "decision": text, "seq": number}, changes.standing
                    ),
                    "parked": pa.table({"digest": pa.array(changes.parked, type=text)}),
                    "asked": pa.table({"digest": pa.array(changes.asked, type=text)}),
                }
                for name, table in entries.items():
                    cursor.register(name, table)
                cursor.execute("BEGIN")  # a concurrent reader sees all of it or none
                cursor.execute(CHANGED_STATES, {"audit": self.audit})
                cursor.execute("DELETE FROM states WHERE place IN (SELECT place FROM changed)")
                cursor.execute("INSERT INTO states SELECT * FROM changed")
                cursor.execute("DROP TABLE changed")
                cursor.execute("COMMIT")
                for name in entries:
                    cursor.unregister(name)
            self._seen = newest


def _rows_table(columns: Mapping[str, pa.DataType], rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    values = list(zip(*rows, strict=True)) or [()] * len(columns)
    arrays = [pa.array(column, type=kind) for column, kind in zip(values, columns.values(), strict=True)]
    return pa.table(dict(zip(columns, arrays, strict=True)))


def _check_policy(policy: ReviewPolicy, manifest: Manifest, protocol: Protocol) -> None:
    if protocol.digest != policy.protocol_digest:
        raise DataError("the policy was fitted under another protocol than this audit; fit one for it")
    if manifest.model.fingerprint != policy.model_fingerprint:
        raise DataError("the policy was fitted for another model than the one audited here; fit one for it")
    if policy.segmented_by not in (None, PREDICTED):
        raise DataError("the policy has rules for segments of its own, which only Python knows; fit one without them")


# --- the temporary folder --------------------------------------------------------------------------------------

PREFIX = "fragility-review-"
LOCK = "lock"


class Scratch:
    """A folder that only its user can read, locked while it is in use."""

    def __init__(self) -> None:
        remove_abandoned(Path(tempfile.gettempdir()))
        self._folder = tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True)  # of mode 0700
        self.path = Path(self._folder.name)
        # Locked before it has the name that others look for: they never see it without the lock.
        self._lock: IO[bytes] = (self.path / "unlocked").open("wb")
        if fcntl is not None:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            (self.path / "unlocked").rename(self.path / LOCK)

    def remove(self) -> None:
        self._lock.close()
        self._folder.cleanup()


def remove_abandoned(folder: Path) -> None:
    """Remove what workbenches of this user left in a folder when they were killed."""
    if fcntl is None:
        return
    for scratch in folder.glob(f"{PREFIX}*"):
        try:
            if scratch.is_symlink() or not scratch.is_dir() or scratch.stat().st_uid != os.geteuid():
                continue
            with (scratch / LOCK).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(scratch, ignore_errors=True)
        except OSError:  # in use, or without a lock
            continue
