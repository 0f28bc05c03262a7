"""Pure functions, most of them of tensors: the arithmetic of group discrimination, and checks of settings.

Nothing here imports the rest of the project."""
