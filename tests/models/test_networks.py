"""Every network: its number of parameters, output, second derivatives and reproducibility."""

import ast
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import leakgauge.models
from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.models import MODELS, registry
from leakgauge.models import build as build_model
from leakgauge.models.options import seeded

#: Small options of every network. A new network adds one line here.
SMALL: dict[str, dict[str, Any]] = {
    "lenet": {"shape": (1, 28, 28), "classes": 5},
    "dlf_femnist": {"shape": (1, 28, 28)},
    "dlf_cifar100": {"shape": (3, 32, 32)},
    "resnet18": {"shape": (3, 8, 8)},
    "resnet20": {"shape": (3, 8, 8)},
    "resnet20_4": {"shape": (3, 8, 8)},
    "mlp": {"shape": (14,)},
    "vit": {"shape": (1, 8, 8), "patch": 2, "width": 12},
}

# Computed by hand: kernel x kernel x in x out (+ out for a bias), 2 x channels for a normalisation.
PARAMETERS = [
    ("lenet", {}, 912 + 3612 + 3612 + 768 * 10 + 10),
    ("lenet", {"shape": (1, 28, 28), "classes": 62}, 312 + 3612 + 3612 + 588 * 62 + 62),
    ("dlf_femnist", {}, 320 + 18_496 + 3136 * 100 + 100 + 6262),
    ("dlf_cifar100", {}, 1792 + 73_856 + 8192 * 200 + 200 + 20_100),
    ("dlf_cifar100", {"channels": (4, 8), "dense": 10, "classes": 2}, 112 + 296 + 512 * 10 + 10 + 22),
    ("resnet18", {}, 11_173_962),  # the usual CIFAR-10 variant
    ("resnet18", {"stem": "imagenet", "classes": 1000, "shape": (3, 224, 224)}, 11_689_512),  # He et al.
    ("resnet18", {"norm": "group"}, 11_173_962),
    (
        "resnet18",
        {"norm": "none"},
        11_173_962 - 4800,
    ),  # one bias instead of scale and shift for 4,800 channels
    ("resnet20", {}, 464 + 14_016 + 51_648 + 205_696 + 650),
    ("resnet20", {"width": 4}, 4_327_754),
    ("resnet20_4", {}, 1856 + 221_952 + 820_992 + 3_280_384 + 2570),
    ("mlp", {"shape": (14,)}, 3840 + 2 * 65_792 + 514),
    ("mlp", {"shape": (14,), "batch_norm": True}, 3840 + 2 * 65_792 + 514 + 3 * 512),
    ("mlp", {"shape": (2, 7), "hidden": (), "classes": 3}, 14 * 3 + 3),
    (
        "vit",  # ViT-Tiny (Touvron et al., ICML 2021)
        {"shape": (3, 224, 224), "classes": 1000, "patch": 16, "width": 192, "depth": 12, "heads": 3},
        5_717_416,
    ),
    (
        "vit",
        {"shape": (1, 8, 8), "patch": 2, "width": 8, "depth": 1, "positions": "fixed", "pooling": "mean"},
        40 + 16 + 216 + 72 + 16 + 288 + 264 + 16 + 90,
    ),
]


def build(name: str, **options: Any) -> Any:
    return build_model(name, **options)


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(("name", "options", "count"), PARAMETERS)
def test_number_of_parameters(name, options, count):
    assert size(build(name, **options)) == count


def test_every_model_is_tested():
    assert SMALL.keys() == MODELS.keys()


GUIDE = Path(__file__).parents[2] / "docs" / "adding-a-model.md"


def test_the_guide_adds_a_network(tmp_path, monkeypatch):
    module, test_line = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    monkeypatch.setattr(leakgauge.models, "__path__", [*leakgauge.models.__path__, str(tmp_path)])
    (tmp_path / "gru.py").write_text(module)
    networks = registry.discover()
    assert networks.keys() == {*MODELS, "gru_network"}
    [(name, options)] = ast.literal_eval("{" + test_line + "}").items()
    for mode in ("train", "eval"):
        check_output_and_second_derivatives(networks[name](**options, seed=0).train(mode == "train"), options["shape"])
    (tmp_path / "second.py").write_text(module)
    with pytest.raises(ValueError, match=r"leakgauge\.models\.second declares a second network called 'gru_network'"):
        registry.discover()
    for name in ("gru", "second"):
        del sys.modules[f"leakgauge.models.{name}"]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_output_and_second_derivatives(name, mode):
    model = build(name, **SMALL[name], seed=0).train(mode == "train")
    check_output_and_second_derivatives(model, SMALL[name]["shape"])


def check_output_and_second_derivatives(model, shape):
    inputs = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0), requires_grad=True)
    scores = model(inputs)
    assert scores.shape == (2, model.head.out_features)
    loss = nn.functional.cross_entropy(scores, torch.tensor([0, 1]))
    gradient = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    norm = torch.stack([part.square().sum() for part in gradient]).sum()
    (second,) = torch.autograd.grad(norm, inputs)
    assert torch.isfinite(second).all()
    assert second.abs().sum() > 0


@pytest.mark.parametrize("name", MODELS)
def test_no_activation_works_in_place(name):
    assert not any(getattr(module, "inplace", False) for module in build(name, **SMALL[name]).modules())


@pytest.mark.parametrize("name", MODELS)
def test_seed_fixes_the_weights_and_spares_the_global_generator(name):
    before = torch.get_rng_state()
    first, second = build(name, **SMALL[name], seed=3), build(name, **SMALL[name], seed=3)
    other = build(name, **SMALL[name], seed=4)
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(first.head.weight, other.head.weight)


def test_without_a_seed_the_global_generator_decides():
    with seeded(1):
        first, second = build("mlp"), build("mlp")
    with seeded(1):
        again = build("mlp")
    assert torch.equal(first.head.weight, again.head.weight)
    assert not torch.equal(first.head.weight, second.head.weight)


def test_lenet_initialisation():
    model = build("lenet", seed=0)
    for parameter in model.parameters():
        assert parameter.abs().max() <= 0.5
    assert model.head.weight.abs().max() > 0.49
    assert model.head.weight.std().item() == pytest.approx(12**-0.5, rel=0.02)
    assert build("lenet", initialisation="default", seed=0).head.weight.abs().max() <= 768**-0.5


@pytest.mark.parametrize("activation", ["sigmoid", "relu", "tanh"])
def test_lenet_activations(activation):
    kinds = {type(module).__name__.lower() for module in build("lenet", activation=activation).features}
    assert kinds == {"conv2d", activation}


def test_resnet_initialisation_is_kaiming_fan_out():
    weight = build("resnet18", seed=0).features[-1].body[0].weight
    assert weight.std().item() == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.01)
    default = build("resnet18", initialisation="default", seed=0).features[-1].body[0].weight
    assert default.std().item() == pytest.approx((1 / (3 * 512 * 9)) ** 0.5, rel=0.01)


@pytest.mark.parametrize(("norm", "kind"), [("batch", nn.BatchNorm2d), ("group", nn.GroupNorm), ("none", nn.Identity)])
def test_resnet_norms(norm, kind):
    model = build("resnet20", norm=norm, seed=0)
    kinds = {
        type(module) for module in model.modules() if isinstance(module, nn.BatchNorm2d | nn.GroupNorm | nn.Identity)
    }
    assert kinds == {kind}
    assert torch.isfinite(model(torch.rand(2, 3, 32, 32))).all()


def test_imagenet_stem_reduces_by_four():
    model = build("resnet18", stem="imagenet", shape=(3, 64, 64))
    assert model.stem(torch.zeros(1, 3, 64, 64)).shape == (1, 64, 16, 16)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("lenet", {"shape": (32, 32)}, "3 whole numbers"),
        ("lenet", {"shape": (3, 0, 32)}, "at least 1"),
        ("lenet", {"shape": 32}, "a list whose values are each a whole number"),
        ("lenet", {"classes": 0}, "classes"),
        ("dlf_femnist", {"shape": (1, 3, 3)}, "at least 4 x 4"),
        ("mlp", {"hidden": (3, True)}, "hidden"),
        ("vit", {"patch": 5}, "do not divide an image of 32 x 32"),
        ("vit", {"heads": 5}, "64 is no multiple of 5"),
    ],
)
def test_impossible_sizes_are_refused(name, options, words):
    with pytest.raises(InvalidInput, match=words):
        build(name, **options)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("lenet", {"activation": "gelu"}),
        ("lenet", {"initialisation": "kaiming"}),
        ("resnet18", {"stem": "mnist"}),
        ("resnet18", {"norm": "layer"}),
        ("resnet20", {"initialisation": "xavier"}),
        ("vit", {"positions": "rotary"}),
        ("vit", {"pooling": "max"}),
    ],
)
def test_unknown_choices_list_the_valid_ones(name, options):
    with pytest.raises(UnknownName, match="known: "):
        build(name, **options)


def test_dlf_starts_as_its_authors_networks_do() -> None:
    model = build("dlf_femnist", seed=0)
    weight = model.get_parameter("dense.weight")
    assert float(weight.detach().std()) == pytest.approx(3136**-0.5, rel=0.01)
    assert float(weight.detach().abs().max()) <= 2 * 3136**-0.5 / 0.8796
    assert not bool(model.get_parameter("dense.bias").detach().any())
    smaller = build("dlf_femnist", seed=0, initialisation="default").get_parameter("dense.weight")
    assert float(smaller.detach().std()) < 0.7 * float(weight.detach().std())
