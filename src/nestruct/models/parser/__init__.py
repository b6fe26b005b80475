"""The paper's parser: a VAE over sentences with a latent dependency tree.

``model.py`` is the VAE, ``networks.py`` its parser and decoder; ``population.py`` evaluates many
members at once, with the kernels of ``kernels.py``. ``details.py`` counts what is attached rightly,
``files.py`` parses files, ``words.py`` plain words; ``text_tree.py`` draws a tree as text.
"""

from nestruct.models.parser.model import ParserVAE
from nestruct.models.parser.words import ParsedSentence

__all__ = ["ParsedSentence", "ParserVAE"]
