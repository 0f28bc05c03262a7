"""Splits of the nodes into training, validation and test sets."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Data

from src.graph import Labels
from src.ops.checks import check_choice

SPLITS = ("public", "random", "per_class")


def make_labels(data: Data, split: str, seed: int) -> Labels:
    """Split the labelled nodes (class >= 0) of a dataset.

    Args:
        data: With ``y``, int64, shape (N,); for the public split with the masks that the dataset ships.
        split: ``public``; ``random``: 10 % training, 10 % validation, 80 % test, blind to the classes; ``per_class``:
            20 training and 30 validation nodes of each class, the rest test.
        seed: Of the two drawn splits.

    Raises:
        ValueError: If the split is unknown, or not shipped, or if a part of it, or a class in training, is missing.
    """
    check_choice("dataset.split", split, SPLITS)
    classes = data.y
    generator = torch.Generator().manual_seed(seed)
    if split == "public":
        if data.get("train_mask") is None:
            raise ValueError("this dataset ships no public split: set dataset.split to 'random' or 'per_class'")
        parts = tuple(data[f"{part}_mask"].nonzero().squeeze(1) for part in ("train", "val", "test"))
    elif split == "random":
        parts = random_split(classes, generator)
    else:
        parts = per_class_split(classes, generator)
    labels = Labels(classes, *(part.sort().values for part in parts))
    for part, size in zip(("training", "validation", "test"), labels.sizes, strict=True):
        if size == 0:
            raise ValueError(
                f"the {split} split of {int((classes >= 0).sum()):,} nodes whose class is known has no {part} nodes: "
                "it takes more of them, or another dataset.split"
            )
    missing = sorted(set(range(labels.num_classes)) - set(classes[labels.train].tolist()))
    if missing:
        raise ValueError(
            f"class {', '.join(map(str, missing))} of 0..{labels.num_classes - 1} has no training node in the {split} "
            f"split with seed {seed}: choose another dataset.split_seed, or dataset.split=per_class"
        )
    return labels


def random_split(classes: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return 10 % training, 10 % validation and 80 % test nodes, drawn without regard to the classes."""
    labelled = (classes >= 0).nonzero().squeeze(1)
    shuffled = labelled[torch.randperm(len(labelled), generator=generator)]
    tenth = len(labelled) // 10
    return shuffled[:tenth], shuffled[tenth : 2 * tenth], shuffled[2 * tenth :]


def per_class_split(
    classes: Tensor, generator: torch.Generator, num_train: int = 20, num_validation: int = 30
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``num_train`` and ``num_validation`` nodes of each class, and all others as test nodes."""
    train, validation, test = [], [], []
    for label in range(int(classes.max()) + 1):
        members = (classes == label).nonzero().squeeze(1)
        shuffled = members[torch.randperm(len(members), generator=generator)]
        train.append(shuffled[:num_train])
        validation.append(shuffled[num_train : num_train + num_validation])
        test.append(shuffled[num_train + num_validation :])
    return torch.cat(train), torch.cat(validation), torch.cat(test)
