"""The paper's parser: a VAE over sentences with a latent dependency tree.

``model.py`` is the VAE, ``networks.py`` its parser and decoder; ``population.py`` evaluates many
members at once, with the kernels of ``kernels.py``. ``details.py`` counts what is attached rightly,
``files.py`` reads and writes CoNLL-U.
"""

from nestruct.models.parser.model import ParserVAE

__all__ = ["ParserVAE"]
