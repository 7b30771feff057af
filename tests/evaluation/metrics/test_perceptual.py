"""LPIPS equals that of torchmetrics with the same random AlexNet, and the file of weights is found."""

import hashlib

import pytest
import torch
from torch import nn

from leakgauge.core.errors import CorruptFile, DataNotFound, InvalidInput
from leakgauge.evaluation import lpips
from leakgauge.evaluation.metrics import perceptual


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Return a file like the published one, with random weights."""
    convolutions = {0: (3, 64, 11), 3: (64, 192, 5), 6: (192, 384, 3), 8: (384, 256, 3), 10: (256, 256, 3)}
    generator = torch.Generator().manual_seed(0)
    state = {"classifier.1.weight": torch.zeros(1)}
    for number, (before, after, kernel) in convolutions.items():
        shape = (after, before, kernel, kernel)
        state[f"features.{number}.weight"] = torch.randn(shape, generator=generator) / (before * kernel**2) ** 0.5
        state[f"features.{number}.bias"] = 0.1 * torch.randn(after, generator=generator)
    path = tmp_path_factory.mktemp("weights") / perceptual.FILE_NAME
    torch.save(state, path)
    return path


@pytest.fixture
def trusted(weights, monkeypatch):
    """Expect the checksum of the random file instead of the published one."""
    monkeypatch.setattr(perceptual, "CHECKSUM", hashlib.sha256(weights.read_bytes()).hexdigest())
    perceptual._network.cache_clear()
    yield weights
    perceptual._network.cache_clear()


@pytest.fixture
def torchmetrics_lpips(trusted, monkeypatch):
    from torchmetrics.functional.image import lpips as module

    def features(name, pretrained):
        assert name == "alexnet"
        layers = [
            nn.Conv2d(3, 64, 11, 4, 2),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(64, 192, 5, 1, 2),
            nn.ReLU(),
        ]
        layers += [nn.MaxPool2d(3, 2), nn.Conv2d(192, 384, 3, 1, 1), nn.ReLU(), nn.Conv2d(384, 256, 3, 1, 1)]
        layers += [nn.ReLU(), nn.Conv2d(256, 256, 3, 1, 1), nn.ReLU()]
        stack = nn.Sequential(*layers)
        state = torch.load(trusted, weights_only=True)
        stack.load_state_dict({k[9:]: v for k, v in state.items() if k.startswith("features.")})
        return stack

    monkeypatch.setattr(module, "_get_tv_model_features", features)
    network = module._LPIPS(pretrained=True, net="alex")
    return lambda first, second: network(first, second, normalize=True).flatten()


def test_colour_images(torchmetrics_lpips, trusted):
    first, second = torch.rand(2, 3, 3, 40, 48, generator=torch.Generator().manual_seed(1))
    values = lpips(first, second, weights=trusted)
    assert values.shape == (3,)
    assert values.min() > 1e-3
    assert torch.allclose(values, torchmetrics_lpips(first, second), atol=1e-6)
    assert torch.allclose(lpips(255 * first, 255 * second, data_range=255, weights=trusted), values, atol=1e-5)


def test_small_grey_images_are_enlarged(torchmetrics_lpips, trusted):
    first, second = torch.rand(2, 2, 1, 28, 28, generator=torch.Generator().manual_seed(2))
    larger = [
        nn.functional.interpolate(images.repeat(1, 3, 1, 1), (32, 32), mode="bilinear", align_corners=False)
        for images in (first, second)
    ]
    assert torch.allclose(lpips(first, second, weights=trusted), torchmetrics_lpips(*larger), atol=1e-5)


def test_an_exact_copy_has_no_distance(trusted):
    image = torch.rand(2, 3, 32, 32)
    assert lpips(image, image, weights=trusted.parent).tolist() == [0, 0]


def test_environment_variable_and_hub_folder(trusted, monkeypatch, tmp_path):
    monkeypatch.setenv(perceptual.VARIABLE, str(trusted))
    assert perceptual.find_weights() == trusted
    monkeypatch.delenv(perceptual.VARIABLE)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / perceptual.FILE_NAME).write_bytes(trusted.read_bytes())
    assert perceptual.find_weights() == tmp_path / "checkpoints" / perceptual.FILE_NAME


def test_absent_weights_say_where_to_get_them(monkeypatch, tmp_path):
    monkeypatch.delenv(perceptual.VARIABLE, raising=False)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    with pytest.raises(DataNotFound) as error:
        lpips(torch.rand(1, 3, 32, 32), torch.rand(1, 3, 32, 32))
    for part in (
        str(tmp_path / "checkpoints" / perceptual.FILE_NAME),
        perceptual.ADDRESS,
        perceptual.VARIABLE,
    ):
        assert part in str(error.value)


def test_a_foreign_file_is_refused(weights):
    perceptual._network.cache_clear()
    with pytest.raises(CorruptFile, match="not 7be5be79"):
        lpips(torch.rand(1, 3, 32, 32), torch.rand(1, 3, 32, 32), weights=weights)


def test_two_channels_are_refused():
    with pytest.raises(InvalidInput, match="1 or 3 channels"):
        lpips(torch.rand(1, 2, 32, 32), torch.rand(1, 2, 32, 32))
