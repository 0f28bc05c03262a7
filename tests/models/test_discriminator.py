"""The collapsed projector against the same layers one by one, gradients too."""

import pytest
import torch

from src.models.discriminator import GroupDiscriminator


@pytest.mark.parametrize("num_layers", [0, 1, 3])
@pytest.mark.parametrize("activation", ["none", "prelu", "relu"])
@pytest.mark.parametrize("aggregation", ["sum", "mean", "min", "max", "linear"])
def test_forward_equals_layer_by_layer(num_layers: int, activation: str, aggregation: str) -> None:
    head = GroupDiscriminator(6, num_layers, activation, aggregation).double()
    embeddings = torch.randn(11, 6, dtype=torch.float64, requires_grad=True)
    inputs = [embeddings, *(p for p in head.parameters())]
    weights = torch.randn(11, dtype=torch.float64)
    (fast,), plain = head(embeddings), head.plain(embeddings)
    torch.testing.assert_close(fast, plain)
    expected = torch.autograd.grad((plain * weights).sum(), inputs, allow_unused=True)
    gradients = torch.autograd.grad((fast * weights).sum(), inputs, allow_unused=True)
    for one, other in zip(expected, gradients, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other)


def test_aggregations_without_projector_by_hand() -> None:
    x = torch.tensor([[1.0, 4.0], [-2.0, 0.5]])
    by_hand = {"sum": [5.0, -1.5], "mean": [2.5, -0.75], "min": [1.0, -2.0], "max": [4.0, 0.5]}
    for aggregation, expected in by_hand.items():
        (logits,) = GroupDiscriminator(2, 0, "none", aggregation)(x)
        assert logits.tolist() == expected
