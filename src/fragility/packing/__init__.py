"""Evidence packs: an audit, its report and further evidence in one folder or archive, with a source for every number.

sources   the audit and the other sources of a pack, and each number of a pack with its source
pages     what supervisors and lawmakers require, and the pages of a pack: the index, and a section for a model card
archive   packs as folders and zip archives, and reading an archive of unknown origin
writing   `pack` and `verify_pack`: derive everything else in a pack from its sources, and write or check it
"""

from fragility.packing.writing import pack, verify_pack

__all__ = ["pack", "verify_pack"]
