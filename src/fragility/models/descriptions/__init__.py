"""Descriptions: what a value in a fitted model consists of, for its fingerprint.

parts         a description, and the bytes of plain values
code          functions, classes and modules
objects       any other object, by the state it is rebuilt from
containers    sequences, mappings, arrays and tables
libraries     what boosters, torch and others hold in forms of their own
describing    which of these describes a value
"""

from fragility.models.descriptions.describing import describe
from fragility.models.descriptions.parts import Parts, chunk, plain

__all__ = ["Parts", "chunk", "describe", "plain"]
