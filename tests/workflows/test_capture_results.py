"""A result in the cache is of use only for the same data, and only with samples where these are needed."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from leakgauge.attacks import inverting_gradients
from leakgauge.attacks.reconstruction_file import load_reconstruction, to_parts
from leakgauge.data import load
from leakgauge.federation.client import fedsgd
from leakgauge.models import build
from leakgauge.runtime.cache import Entry
from leakgauge.workflows.capture_results import (
    Capture,
    file_name,
    saved_capture,
    score_to_plain,
    scored_capture,
    stored_capture,
)


@pytest.fixture(scope="module")
def attacked():
    digits = load("digits")
    observation, truth = fedsgd(build("lenet", shape=(1, 8, 8), seed=0), digits.share([0]))
    result = inverting_gradients(steps=2)(observation, progress=False)
    return scored_capture(Capture(Path("a/client.safetensors"), "0", (), False, digits.spec, truth), result)


def entry(attacked, samples):
    document, tensors = to_parts(attacked.reconstruction)
    kept = tensors if samples else {name: value for name, value in tensors.items() if name not in ("samples", "labels")}
    return Entry({**document, **score_to_plain(attacked)}, kept)


@pytest.mark.parametrize("samples", [True, False])
def test_a_stored_result_has_the_score_that_it_had(attacked, samples):
    again = stored_capture(attacked.capture, entry(attacked, samples), samples)
    assert again.cached
    assert again.score["psnr"].value == pytest.approx(attacked.score["psnr"].value)
    assert len(again.reconstruction.samples) == int(samples)


def test_a_result_without_samples_does_not_serve_those_who_need_them(attacked):
    assert stored_capture(attacked.capture, entry(attacked, False), True) is None
    assert stored_capture(attacked.capture, None, False) is None


def test_a_result_without_samples_belongs_to_the_data_it_was_scored_with(attacked):
    other = replace(attacked.capture, truth=replace(attacked.capture.truth, inputs=1 - attacked.capture.truth.inputs))
    assert stored_capture(other, entry(attacked, False), False) is None
    rescored = stored_capture(other, entry(attacked, True), False)
    assert rescored.score["psnr"].value != attacked.score["psnr"].value


def test_a_guess_that_is_near_the_truth_by_luck_shows_no_leakage(attacked):
    assert "psnr" in attacked.telling
    outcome = replace(attacked.reconstruction.outcome, kind="failed")
    lucky = replace(attacked, reconstruction=replace(attacked.reconstruction, outcome=outcome))
    assert not set(lucky.telling) - {"label_errors", "target_error"}


def test_samples_are_saved_or_removed(attacked, tmp_path):
    assert saved_capture(attacked, tmp_path, False).reconstruction.labels is None
    assert not list(tmp_path.iterdir())
    saved_capture(attacked, tmp_path, True)
    saved = load_reconstruction(tmp_path / file_name(attacked.capture))
    assert torch.equal(saved.samples, attacked.reconstruction.samples)
