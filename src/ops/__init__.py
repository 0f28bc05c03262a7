"""Pure functions of tensors: the arithmetic of group discrimination. Nothing here imports the rest of the project."""
