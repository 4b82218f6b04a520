"""One error tree. Every error a user can cause is one of these, with a sentence that says what to do.

What to do is said differently in Python (``space='raw'``) and at the command line (``--space raw``). A message is
therefore given in parts, some of them `Advice` with both forms: ``str(error)`` says it in Python,
``error.in_options()`` at the command line.
"""

from __future__ import annotations

from dataclasses import dataclass

LONGEST = 1000  # characters of a message

PYTHON_OBJECT = "name it as package.module:attribute"  # how the command line takes a model made in Python


@dataclass(frozen=True, slots=True)
class Advice:
    """The part of a message that names arguments of a Python function, or the options that stand for them."""

    python: str
    options: str

    @classmethod
    def argument(cls, name: str, value: str) -> Advice:
        """Return the advice to set an argument that is an option of the same name."""
        return cls(f"{name}={value!r}", f"--{name.replace('_', '-')} {value}")


class Message(Exception):
    """A message of text, advice and the messages of other errors, in this order.

    An error that quotes another one takes the error itself as a part, not its text, which holds advice in Python only.
    """

    def __init__(self, *parts: str | Advice | Message) -> None:
        flat: list[str | Advice] = []
        for part in parts:
            flat += part.args if isinstance(part, Message) else [part]
        # Messages quote what they complain of, and files of unknown origin may hold names of any length.
        super().__init__(*(_shorten(part) if isinstance(part, str) else part for part in flat))

    def __str__(self) -> str:
        return _shorten("".join(part.python if isinstance(part, Advice) else part for part in self.args))

    def in_options(self) -> str:
        """Return the message with advice in options of the command line."""
        return _shorten("".join(part.options if isinstance(part, Advice) else part for part in self.args))


def _shorten(text: str) -> str:
    half = LONGEST // 2 - 10
    return text if len(text) <= LONGEST else f"{text[:half]} [...] {text[-half:]}"


def first_line(error: BaseException) -> str:
    """Return the first line of what another library says; the name of its error if it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def reason_of(error: BaseException) -> object:
    """Return what an error says without the number and the path that the system's errors name."""
    return getattr(error, "strerror", None) or error


def name_error(error: BaseException) -> str:
    """Return the kind of another library's error, and the first line of what it says."""
    kind, said = type(error).__name__, first_line(error)[:300]
    return kind if said == kind else f"{kind}: {said}"


class FragilityWarning(Message, UserWarning):
    """A warning that quotes an error of this package."""


class FragilityError(Message, ValueError):
    """Root of all errors raised on purpose by this package."""


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
