"""The paper's graph-layout model: which tree explains how nodes move.

``model.py`` is the VAE, ``nri.py`` its encoder and decoder; ``pair_scores.py`` and ``roll_out.py``
are their arithmetic, ``compiled.py`` what lets a GPU run it in few passes. Without derivatives, for
all members of a population, ``pair_blocks.py`` and ``tree_moves.py`` do the same by kernels.
"""

from nestruct.models.relational.model import RelationalVAE

__all__ = ["RelationalVAE"]
