"""``nestruct recipes``: what can be trained."""

from nestruct.cli.arguments import MaybeRecipe
from nestruct.training import read_recipe, recipe_names, recipe_text


def recipes(
    name: MaybeRecipe = None,
    /,
) -> int:
    """List the recipes that come with nestruct, or print one as TOML to start your own from.

    Args:
        name: The recipe to print.
    """
    if name is not None:
        print(recipe_text(name), end="")
        return 0
    names = recipe_names()
    width = max(map(len, names))
    for known in names:
        print(f"{known:{width}}  {read_recipe(known).get('title', '')}")
    return 0
