import math

import pytest
import torch

from leakgauge.attacks import Reconstruction
from leakgauge.attacks.inversion.solve import Trace
from leakgauge.attacks.inversion.stopping import Outcome
from leakgauge.attacks.reconstruction_file import KIND, VERSION, load_reconstruction, save_reconstruction
from leakgauge.core.container import write_container
from leakgauge.core.errors import CorruptFile


def reconstruction(**changes):
    settings = {
        "samples": torch.rand(2, 1, 4, 4),
        "labels": torch.tensor([3, 4]),
        "outcome": Outcome("converged", 7, "converged: at step 7"),
        "loss": 1e-7,
        "trace": Trace(torch.tensor([1.0, 1e-7], dtype=torch.double), {}),
        "client": "a",
        "round": 5,
        "attack": "some attack",
        "seed": 9,
        "seconds": 1.5,
    }
    return Reconstruction(**{**settings, **changes})


def test_everything_comes_back(tmp_path):
    result = reconstruction()
    back = load_reconstruction(save_reconstruction(result, tmp_path / "r.safetensors"))
    assert torch.equal(back.samples, result.samples)
    assert torch.equal(back.labels, result.labels)
    assert torch.equal(back.trace.losses, result.trace.losses)
    for name in ("outcome", "loss", "client", "round", "attack", "seed", "seconds"):
        assert getattr(back, name) == getattr(result, name)


def test_a_guess_is_still_a_guess(tmp_path):
    result = reconstruction(outcome=Outcome("guess", 3, "nothing was explained"))
    assert load_reconstruction(save_reconstruction(result, tmp_path / "r.safetensors")).outcome.kind == "guess"


def test_labels_trace_and_loss_may_be_unknown(tmp_path):
    result = reconstruction(labels=None, trace=None, loss=math.nan)
    back = load_reconstruction(save_reconstruction(result, tmp_path / "r.safetensors"))
    assert (back.labels, back.trace) == (None, None)
    assert math.isnan(back.loss)


def test_a_description_of_something_else_is_refused(tmp_path):
    write_container(tmp_path / "r.safetensors", KIND, VERSION, {"outcome": []}, {"samples": torch.zeros(1)})
    with pytest.raises(CorruptFile, match="not that of a reconstruction"):
        load_reconstruction(tmp_path / "r.safetensors")
