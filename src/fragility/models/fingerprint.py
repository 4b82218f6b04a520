"""Fingerprints of fitted models: a digest over what determines their predictions.

The walk is structural (`descriptions` says what each value consists of). It does not use pickle, whose bytes change
with object identity and between a model in memory and the same model loaded from a file. It does not recurse and has no
depth limit.

The digest of a value covers the digests of its parts. A reference back to a value that is still open is encoded by the
number of open values between them, so that the digest of a cycle does not depend on its position in the model. Two
equal parts and two references to one part give the same digest.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from fragility.base.canonical import DIGEST_PREFIX
from fragility.base.libraries import libraries_of
from fragility.models.descriptions import Parts, chunk, describe, plain


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The identity of a fitted model.

    ``digest``: ``sha256:<hex>``. ``partial``: what the digest does not cover, in words; empty if it covers everything.
    ``libraries``: the top-level packages of the classes and functions in the model.
    """

    digest: str
    partial: tuple[str, ...]
    libraries: frozenset[str] = frozenset()


def fingerprint(model: object) -> Fingerprint:
    """Return the fingerprint of a fitted model; equal for equal models, in memory or loaded from a file."""
    walk = _Walk()
    digest = walk.digest(model)
    return Fingerprint(DIGEST_PREFIX + digest.hex(), tuple(sorted(walk.unseen)), frozenset(walk.libraries))


class _Open:
    """A value whose parts are being visited."""

    def __init__(self, described: Parts, place: int) -> None:
        self.parts = iter(described.parts)
        self.place = place  # among the unsettled values
        self.reaches = place  # the lowest place that it or its parts refer back to
        self._hasher = hashlib.sha256(chunk("tag", described.tag.encode()))
        self._unordered: list[bytes] | None = None if described.ordered else []

    def add(self, part: bytes) -> None:
        if self._unordered is None:
            self._hasher.update(part)
        else:
            self._unordered.append(part)

    def digest(self) -> bytes:
        for part in sorted(self._unordered or ()):
            self._hasher.update(part)
        return self._hasher.digest()


class _Walk:
    """Tarjan's algorithm: a value is settled once nothing in it refers to a value opened before it."""

    def __init__(self) -> None:
        self.unseen: set[str] = set()
        self.libraries: set[str] = set()
        self._open: list[_Open] = []
        self._unsettled: dict[int, int] = {}  # id -> place, in the order of the places
        self._settled: dict[int, bytes] = {}
        self._alive: list[Any] = []  # ids are unique only while their values are alive

    def digest(self, root: Any) -> bytes:
        top = _Open(Parts("root", [root]), -1)
        self._open.append(top)
        while True:
            current = self._open[-1]
            for part in current.parts:
                if self._enter(current, part):
                    break
            else:
                self._open.pop()
                if current is top:
                    return current.digest()
                self._close(current)

    def _enter(self, current: _Open, value: Any) -> bool:
        """Add a part to the current value; return True if the part is compound and was opened."""
        data = plain(value)
        if data is not None:
            current.add(data)
        elif id(value) in self._settled:
            current.add(chunk("node", self._settled[id(value)]))
        elif id(value) in self._unsettled:
            place = self._unsettled[id(value)]
            current.add(chunk("back", str(current.place - place).encode()))
            current.reaches = min(current.reaches, place)
        else:
            described = describe(value)
            self.unseen.update(described.unseen)
            self.libraries |= libraries_of(value)
            self._open.append(_Open(described, len(self._unsettled)))
            self._unsettled[id(value)] = len(self._unsettled)
            self._alive.append(value)
            return True
        return False

    def _close(self, closed: _Open) -> None:
        digest, place = closed.digest(), closed.place
        while closed.reaches == place and len(self._unsettled) > place:
            member, at = self._unsettled.popitem()
            within = chunk("member", digest + str(at - place).encode())
            self._settled[member] = digest if at == place else hashlib.sha256(within).digest()
        parent = self._open[-1]
        parent.reaches = min(parent.reaches, closed.reaches)
        parent.add(chunk("node", digest))
