"""Evidence packs: an audit, what was concluded from it and what that shows, in one folder or archive.

figures   each number of a pack, with the place it comes from and the rule that computes it
guidance  what supervisors and lawmakers ask for, and what of it an audit shows
pages     the pages of a pack: index, and a section for a model card
archive   how a pack lies in a folder or in a zip archive, and how one of unknown origin is read
deriving  everything in a pack that follows from its sources
packing   `pack` and `verify_pack`
"""

from fragility.packing.packing import pack, verify_pack

__all__ = ["pack", "verify_pack"]
