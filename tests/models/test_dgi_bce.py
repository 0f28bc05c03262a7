"""DGI_BCE is GGD without augmentation, projector and graph power."""

import torch

from src.graph import Graph
from src.models import DGIBCE, GGD
from tests.conftest import SHARED


def test_equals_ggd_with_everything_left_out(small_graph: Graph) -> None:
    torch.manual_seed(0)
    plain = DGIBCE(aggregation="sum", num_features=24, **SHARED)
    torch.manual_seed(0)
    ggd = GGD(
        projector_layers=0, projector_activation="none", aggregation="sum", feature_drop=0.0, edge_drop=0.0, hops=0,
        num_features=24, **SHARED,
    )  # fmt: skip
    losses = []
    for model in (plain, ggd):
        torch.manual_seed(1)
        losses.append(model.loss(small_graph))
    torch.testing.assert_close(losses[0], losses[1])
    torch.testing.assert_close(2 * plain.embed(small_graph), ggd.embed(small_graph))
