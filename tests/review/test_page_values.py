"""What single values of a page say."""

from fragility.apps.review.pages import _list_losses
from fragility.pages.terms import LOSS_NAMES


def test_a_loss_of_nothing_keeps_its_words_and_leaves_those_of_the_others():
    """A case whose certificate cannot be read has its shares only."""
    row = {"rcma": 0.0, "independent_loss": 0.42, "random_loss": 0.2, "common_loss": None}
    names = list(LOSS_NAMES.values())
    known = [("0% of the margin", 0.0), ("42% of the margin", 0.42), ("20% of the margin", 0.2)]
    assert _list_losses(row, None) == tuple((name, *own) for name, own in zip(names, known, strict=False))
