"""From a recipe to a trained model, and from a run folder back to the model."""
