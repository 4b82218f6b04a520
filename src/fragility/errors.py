"""One error tree. Every error a user can cause is one of these, with a sentence that says what to do."""

from __future__ import annotations

LONGEST = 1000  # characters of a message


class FragilityError(ValueError):
    """Root of all errors raised on purpose by this package."""

    def __init__(self, message: str = "") -> None:
        # Messages quote what they complain of, and files of unknown origin may hold names of any length.
        half = LONGEST // 2 - 10
        super().__init__(message if len(message) <= LONGEST else f"{message[:half]} [...] {message[-half:]}")


class DataError(FragilityError):
    """The rows given are not what the model or the protocol expects."""


class EvidenceError(FragilityError):
    """Columns cannot be assigned to evidence groups, or a baseline cannot be made."""


class ProtocolError(FragilityError):
    """A protocol is malformed, or does not belong to this model or these columns."""


class ModelError(FragilityError):
    """A model cannot be loaded, or its output is not a probability for each class."""


class EngineError(FragilityError):
    """An engine was asked for a model it does not know exactly."""


class CertificateError(FragilityError):
    """A certificate folder is malformed, incomplete or of an unknown version."""


class VerificationError(FragilityError):
    """A verification could not be carried out (not: a claim does not hold)."""


class ClusterError(FragilityError):
    """Ray or Spark is not there, cannot be started, or has lost its workers."""
