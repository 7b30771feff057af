"""Rows that reconstruct their clients one by one: how good it is, and pictures of what came back."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from leakgauge import attacks
from leakgauge.attacks import Reconstruction
from leakgauge.core.container import output_folder, write_atomically
from leakgauge.core.progress import Report
from leakgauge.core.truth import Truth
from leakgauge.evaluation import Score, pair, psnr, score, ssim
from leakgauge.reports import contact_sheet, course, loss_curves, stacked, to_png
from leakgauge.reproduction.rows import Method
from leakgauge.reproduction.setting import client_of


def reconstruct_client(
    setting: dict[str, Any],
    method: Method,
    index: int,
    steps: int | None,
    seed: int,
    report: Report,
    pictures: Path | None = None,
) -> dict[str, Any]:
    """Attack one client and score it; with ``pictures``, draw what came back."""
    observation, truth = client_of(setting, index, seed)
    options = method.options if steps is None else {**method.options, "steps": steps}
    attack = attacks.build(method.attack, **options)
    result = attack(observation, seed=seed + index, progress=report)
    if result.outcome.kind == "interrupted":
        raise KeyboardInterrupt
    scored = score(result, truth, threshold=setting["threshold"])
    if pictures is not None and truth.data.is_image:
        draw(output_folder(pictures) / f"{method.name}-client{index}", result, truth, scored)
    values = {name: (scored[name].value, scored[name].chance) for name in scored}
    taken = 0 if result.trace is None else len(result.trace.losses)
    return {"values": values, "steps": taken, "seconds": result.seconds}


def draw(stem: Path, result: Reconstruction, truth: Truth, scored: Score) -> None:
    """The originals above what came back (AWA, figures 2 and 3).

    Where the attack kept iterates (``snapshot_every``), also how good they were on the way, and the lowest loss up to
    then (figure 4): as curves, and as numbers.
    """
    each = scored["psnr"].per_sample
    captions = [] if each is None else [f"{value:.1f} dB" for value in each.tolist()]
    rows = {"original": truth.inputs, "reconstructed": scored.pairing.apply(result.samples.float())}
    write_atomically(Path(f"{stem}.png"), to_png(contact_sheet(rows, {"reconstructed": captions})))
    if result.trace is None or not result.trace.snapshots:
        return
    lowest = result.trace.losses.cummin(0).values
    found = course_of(result, truth)
    table = io.StringIO()
    writer = csv.writer(table)
    writer.writerow(["step", "lowest_loss", "psnr", "ssim"])
    writer.writerows([step, *(f"{value:.6g}" for value in (lowest[step], *found[step]))] for step in found)
    write_atomically(Path(f"{stem}-course.csv"), table.getvalue().encode())
    panels = [
        course({"": {step: value[place] for step, value in found.items()}}, title=title)
        for place, title in enumerate(("PSNR, dB", "SSIM"))
    ]
    panels.append(loss_curves({"": lowest}, size=(760, 300), title="lowest loss so far"))
    write_atomically(Path(f"{stem}-course.png"), to_png(stacked(panels)))


def course_of(result: Reconstruction, truth: Truth) -> dict[int, tuple[float, float]]:
    """The mean PSNR and SSIM of the iterates that an attack kept, by their step."""
    assert result.trace is not None
    found = {}
    for step, variables in result.trace.snapshots:
        samples = truth.data.denormalise(variables["inputs"][: len(truth)]).clamp(0, 1).to(truth.inputs)
        paired = pair(samples, truth.inputs).apply(samples)
        found[step] = (float(psnr(paired, truth.inputs).mean()), float(ssim(paired, truth.inputs).mean()))
    return found
