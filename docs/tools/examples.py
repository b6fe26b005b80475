"""For mkdocstrings: our docstrings say ``Example:``, which griffe knows as ``Examples:`` only."""

from typing import Any

import griffe


class PluralExamples(griffe.Extension):
    """Renames the section before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for each module, class, function and attribute."""
        if obj.docstring is not None:
            text = obj.docstring.value
            obj.docstring.value = text.replace("\nExample:\n", "\nExamples:\n")
