"""Line charts of series on a page."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

import leakgauge as lg
from leakgauge.core.data_spec import DataSpec
from leakgauge.reports.drawing import COLOURS
from leakgauge.reports.pictures import MARK
from leakgauge.reports.series import SHOWN, charts_of, series_section


def colours_of(png):
    pixels = np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).reshape(-1, 3)
    present = {tuple(map(int, pixel)) for pixel in np.unique(pixels, axis=0)}
    return [colour for colour in COLOURS if colour in present]


@pytest.mark.parametrize(
    ("shape", "time_axis", "lines"), [((20, 3), 0, 3), ((3, 20), 1, 3), ((20,), 0, 1), ((20, 9), 0, 6)]
)
def test_each_channel_is_a_line(shape, time_axis, lines):
    spec = DataSpec(shape, 2, bounded=False, time_axis=time_axis)
    offsets = torch.arange(9.0)
    across = offsets[: spec.channels] if time_axis == 0 and len(shape) == 2 else offsets[: spec.channels].unsqueeze(1)
    samples = (across if len(shape) == 2 else offsets[:1]).expand(2, *shape)
    assert colours_of(charts_of({"original": samples}, spec)) == list(COLOURS[:lines])


def test_values_that_are_missing_are_not_drawn():
    spec = DataSpec((20, 2), 2, bounded=False, time_axis=0)
    samples = torch.full((1, 20, 2), torch.nan)
    samples[..., 1] = 1.0
    assert colours_of(charts_of({"rebuilt": samples}, spec)) == [COLOURS[1]]


def test_the_best_recovered_series_come_first_and_the_picture_is_marked():
    spec = DataSpec((20, 9), 2, bounded=False, time_axis=0)
    samples = torch.rand(SHOWN + 2, 20, 9)
    right = torch.linspace(0, 1, len(samples))
    section = series_section("What came back", "An attack.", spec, {"original": samples, "rebuilt": samples}, right)
    best = right.argsort(descending=True)[:SHOWN]
    shown = {"original": samples[best], "rebuilt": samples[best]}
    assert section.picture == charts_of(shown, spec, {"rebuilt": [f"{float(right[row]):.0%} right" for row in best]})
    assert section.shows_samples
    assert "the first 6 of 9 channels" in section.sentences[0]
    assert Image.open(io.BytesIO(section.picture)).text[MARK] == "samples"


def own_series():
    """Return series whose time axis is not named, as a factory of a user may."""
    inputs = torch.rand(40, 3, 12, generator=torch.Generator().manual_seed(0)) - 0.5
    return lg.data.Dataset(inputs, torch.arange(40) % 2, DataSpec((3, 12), 2, bounded=False), name="own")


@pytest.mark.parametrize("named", [True, False], ids=["series of an npz file", "two dimensions without a name"])
def test_an_audit_of_series_ends_with_a_page_of_line_charts(tmp_path, named):
    data = own_series()
    np.savez(tmp_path / "mine.npz", x=data.inputs.numpy(), y=data.targets.numpy())
    document = {
        "model": {"name": "mlp", "options": {"hidden": [4]}},
        "data": {"npz": str(tmp_path / "mine.npz")} if named else {"factory": f"{__name__}:own_series"},
        "training": {"sends": "gradient", "samples": 1},
        "audit": {"attacks": [{"name": "inverting_gradients", "steps": 3}], "clients": 1},
    }
    audit = lg.audit(document, tmp_path / "out", engine="in-process")
    page = audit.page.read_text()
    assert "Each chart shows all channels over time" in page
    assert audit.plan.scenario.dataset.spec.is_series == named
    assert {"features", "mse"} <= set(audit.findings[0].measures)
    omitted = lg.audit(document, tmp_path / "omitted", engine="in-process", redact="omit")
    assert "Each chart shows" not in omitted.page.read_text()
