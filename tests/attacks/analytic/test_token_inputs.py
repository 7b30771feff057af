"""What the first attention layer sees of a token, measured and compared with the layers themselves."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from leakgauge.attacks.analytic.dense import DoesNotFit
from leakgauge.attacks.analytic.token_inputs import factors_at, find_token_inputs
from leakgauge.attacks.analytic.tokens import find_patch_layer
from leakgauge.federation.client import fedsgd
from tests.attacks.analytic.transformers import DIGITS, Encoder, OwnTransformer, RootMeanSquare, frozen


def found(model):
    observation, _ = fedsgd(model, DIGITS.share([0]))
    return find_token_inputs(observation, find_patch_layer(observation))


def trained_norm(width):
    """Return a layer norm with weights and shifts that are not those of the start."""
    norm = nn.LayerNorm(width)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    return norm


def plain_norm(width):
    return nn.LayerNorm(width, elementwise_affine=False)


NORMS = {
    "layer norm": trained_norm,
    "no affine": plain_norm,
    "by hand": RootMeanSquare,
    "none": lambda _: nn.Identity(),
}


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("norm", NORMS)
def test_the_measured_form_is_what_the_layers_see(norm, dense):
    model = OwnTransformer(NORMS[norm], scale=2.5, dense=dense)
    inputs, probe = found(model)
    assert [layer.weight for layer in inputs.layers] == ["mix.look.weight", "mix.give.weight", "mix.seek.weight"]
    assert (inputs.rows, inputs.biased, inputs.normalised) == (18, True, norm != "none")
    assert inputs.of_patches.tolist() == list(range(2, 18))
    tokens = torch.randn(16, 48, generator=torch.Generator().manual_seed(3), dtype=torch.double)
    with torch.no_grad():
        truth = model.double().norm(2.5 * tokens + model.where[2:])
    inner = tokens @ inputs.matrix.T + inputs.offsets
    factors = factors_at(probe, inputs, tokens)
    torch.testing.assert_close(inputs.shift + factors[:, None] * inner, truth, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_the_encoder_of_pytorch(norm_first, batch_first):
    inputs, _ = found(Encoder(norm_first=norm_first, batch_first=batch_first))
    assert [layer.weight for layer in inputs.layers] == ["body.layers.0.self_attn.in_proj_weight"]
    assert inputs.normalised == norm_first
    assert inputs.rows == 16


def test_the_matrix_of_a_layer_norm_is_known():
    """Up to one factor, it is the diagonal of the weights times the centring."""
    model = frozen()
    nn.init.normal_(model.blocks[0].attention_norm.weight)
    inputs, _ = found(model)
    truth = model.blocks[0].attention_norm.weight.detach().double().diag() @ (torch.eye(40) - 1 / 40).double()
    assert F.cosine_similarity(inputs.matrix.flatten(), truth.flatten(), dim=0) > 1 - 1e-9
    offsets = model.positions[0, 1:].double() @ truth.T
    assert F.cosine_similarity(inputs.offsets.flatten(), offsets.flatten(), dim=0) > 1 - 1e-9
    assert inputs.rows == 17


def test_what_is_seen_after_two_normalisations_with_a_shift_has_another_form():
    model = OwnTransformer(lambda width: nn.Sequential(trained_norm(width), nn.LayerNorm(width)))
    with pytest.raises(DoesNotFit, match="by more than one normalisation"):
        found(model)


def test_patches_without_positions_have_no_order():
    model = OwnTransformer()
    nn.init.zeros_(model.where)
    with pytest.raises(DoesNotFit, match="nothing shows the order of the patches"):
        found(model)


def test_tokens_that_are_mixed_at_once_are_not_seen():
    class Mixer(nn.Module):
        def __init__(self):
            super().__init__()
            self.see, self.mix, self.head = nn.Conv2d(1, 24, 2, 2), nn.Linear(16, 16), nn.Linear(24, 10)

        def forward(self, pictures):
            return self.head(torch.tanh(self.mix(self.see(pictures).flatten(2))).mean(2))

    with pytest.raises(DoesNotFit, match="no trained dense layer sees every token before the tokens are mixed"):
        found(Mixer())
