"""What every method shares: an encoder, a training step on a loss without labels, an optimiser, and an embedding."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from src.graph import Batch, Graph
from src.models.encoders import ACTIVATIONS, ENCODERS
from src.ops.checks import check_choice, check_range

OPTIMIZERS: dict[str, type[torch.optim.Adam]] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


class Method(pl.LightningModule, ABC):
    """A self-supervised method for node embeddings.

    A subclass takes its own settings and passes ``**shared`` on to this class, then calls
    ``save_hyperparameters(logger=False)``: the command logs these settings with all others.
    All are plain numbers and strings, so that ``load_from_checkpoint(path, weights_only=True)`` rebuilds the model.
    Each argument but ``num_features`` is a key of ``conf/model/<method>.yaml``, which says what it means.
    """

    def __init__(
        self,
        num_features: int,
        encoder: str,
        hidden_dim: int,
        num_layers: int,
        activation: str,
        optimizer: str,
        learning_rate: float,
        weight_decay: float,
    ) -> None:
        super().__init__()
        check_choice("encoder", encoder, ENCODERS)
        check_choice("activation", activation, ACTIVATIONS)
        check_choice("optimizer", optimizer, OPTIMIZERS)
        check_range("hidden_dim", hidden_dim, 1)
        check_range("num_layers", num_layers, 1)
        check_range("learning_rate", learning_rate, 0)
        check_range("weight_decay", weight_decay, 0)
        self.encoder = ENCODERS[encoder](num_features, hidden_dim, num_layers, activation)

    @abstractmethod
    def loss(self, graph: Graph, targets: Tensor | None = None) -> Tensor:
        """Return the loss of one step, a scalar.

        Args:
            graph: The whole graph.
            targets: Nodes whose samples enter the loss, int64, shape (B,); None for all.
        """

    def encode(self, graph: Graph) -> Tensor:
        """Return the encoder's output for every node, shape (N, D')."""
        return self.encoder(graph.features, graph.adjacency)

    def embed(self, graph: Graph) -> Tensor:
        """Return the embedding that the method is judged by, shape (N, D')."""
        return self.encode(graph)

    def statistics(self, graph: Graph) -> dict[str, float]:
        """Return what else is worth knowing of the model, by name; it goes into ``result.json``."""
        return {}

    def __setattr__(self, name: str, value: Any) -> None:
        # Lightning writes the name of a hook here 40 times a step. To find that it is no parameter took 0.1 ms.
        if name == "_current_fx_name":
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        # On the CPU not by torch.manual_seed, which takes 0.1 ms to ask for every kind of device.
        (torch.default_generator if self.device.type == "cpu" else torch).manual_seed(batch.seed)
        loss = self.loss(batch.graph, batch.targets)
        # Only when the trainer takes it, every ``log_every_n_steps``: at each step it would cost a millisecond.
        if self.trainer._logger_connector.should_update_logs:
            self.log("loss", loss.detach(), on_step=True, on_epoch=False, batch_size=1)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return OPTIMIZERS[self.hparams["optimizer"]](
            self.parameters(),
            lr=self.hparams["learning_rate"],
            weight_decay=self.hparams["weight_decay"],
            fused=True,
        )
