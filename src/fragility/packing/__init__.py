"""Evidence packs: an audit, what was concluded from it and what that shows, in one folder or archive.

sources   the audit and what else was handed in, and each number of a pack with the place it comes from
pages     what supervisors and lawmakers ask for, and the pages of a pack: index, and a section for a model card
archive   how a pack lies in a folder or in a zip archive, and how one of unknown origin is read
writing   `pack` and `verify_pack`: everything in a pack that follows from its sources, written and made again
"""

from fragility.packing.writing import pack, verify_pack

__all__ = ["pack", "verify_pack"]
