"""The numbers that readers, plans and kernels agree on.

Flags of a test, three bits:

    bit 0       NAN_RIGHT: a missing cell (and for ZERO_BAND a zero) goes right
    bits 1-2    KIND: what is compared
                NUMERIC            right iff v > threshold
                ZERO_BAND          the same, but zeros are missing (LightGBM's zero_as_missing)
                CATEGORY           right iff the cell is 0 or more and in the set that the threshold numbers
                CATEGORY_INVERTED  right iff it is not in the set; -0.5 counts as 0

A node of a deep tree, as a walk reads it, is its threshold and one integer, its ``word``:

    a leaf      -1 - number of the leaf
    inner node  steps to the right child | column | BASELINE_RIGHT | flags of the test
                all bits that are left   | column_bits | 1 bit     | 3 bits
"""

from __future__ import annotations

NAN_RIGHT = 1
NUMERIC, ZERO_BAND, CATEGORY, CATEGORY_INVERTED = 0, 2, 4, 6  # what asks for a set comes last
KIND = 6
FLAGS = NAN_RIGHT | KIND

BASELINE_RIGHT = 8  # of a node's word: the baseline goes right here
COLUMN_SHIFT = 4  # of a node's word: the column begins above the flags and BASELINE_RIGHT

WHOLE, NARROW = 1, 2  # rounding of a column's cells before they are compared: to whole numbers, to float32

SIGMOID, SOFTMAX, AVERAGE = 0, 1, 2  # links: how raw scores become probabilities
