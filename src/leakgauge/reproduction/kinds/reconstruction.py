"""Benchmark rows that score the reconstruction of one client at a time, and functions that draw reconstructions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from leakgauge import attacks
from leakgauge.attacks import Reconstruction
from leakgauge.core.container import output_folder
from leakgauge.core.own_files import write_own
from leakgauge.core.progress import Report
from leakgauge.core.text import csv_text
from leakgauge.core.truth import Truth
from leakgauge.evaluation import Score, pair, psnr, score, ssim
from leakgauge.reports import contact_sheet, course, loss_curves, stacked, to_png
from leakgauge.reproduction.clients import client_of
from leakgauge.reproduction.kinds.base import ONE_MESSAGE, Job, Kind, Outcome, check_client, measures_of


def reconstruct_client(job: Job, report: Report) -> Outcome:
    """Attack one client, and score the reconstruction.

    If the job has a folder for pictures, the reconstruction is drawn there.
    """
    observation, truth = client_of(job.setting, job.index, job.seed)
    attack = attacks.build(job.method.attack, **job.options)
    result = attack(observation, seed=job.seed + job.index, progress=report)
    if result.outcome.kind == "interrupted":
        raise KeyboardInterrupt
    scored = score(result, truth, threshold=job.row.measuring.get("threshold"))
    if job.pictures is not None and truth.data.is_image:
        output_folder(job.pictures / job.row.name)
        draw(_stem(job, job.pictures), result, truth, scored)
    steps = 0 if result.trace is None else len(result.trace.losses)
    return Outcome(measures_of(scored), steps, result.seconds)


def _stem(job: Job, pictures: Path) -> Path:
    """Return the common beginning of the paths of all files that a job writes."""
    return pictures / job.row.name / f"{job.method.name}-client{job.index}"


def _drawn(job: Job) -> Iterator[Path]:
    if job.pictures is not None:
        for ending in (".png", "-course.csv", "-course.png"):
            yield Path(f"{_stem(job, job.pictures)}{ending}")


def draw(stem: Path, result: Reconstruction, truth: Truth, scored: Score) -> None:
    """Draw the originals above the reconstructions (AWA, figures 2 and 3).

    If the attack recorded iterates (``snapshot_every``), curves and a CSV file are written too (AWA, figure 4). They
    show the quality of each iterate and the lowest loss up to each iterate.

    Args:
        stem: The common beginning of the paths of all written files.
        result: The reconstruction.
        truth: The client's samples.
        scored: The score of the reconstruction.
    """
    each = scored["psnr"].per_sample
    captions = [] if each is None else [f"{value:.1f} dB" for value in each.tolist()]
    rows = {"original": truth.inputs, "reconstructed": scored.pairing.apply(result.samples.float())}
    write_own(Path(f"{stem}.png"), to_png(contact_sheet(rows, {"reconstructed": captions})))
    if result.trace is None or not result.trace.snapshots:
        return
    lowest = result.trace.losses.cummin(0).values
    qualities = course_of(result, truth)
    lines = [[step, *(f"{value:.6g}" for value in (lowest[step], *qualities[step]))] for step in qualities]
    table = csv_text([["step", "lowest_loss", "psnr", "ssim"], *lines])
    write_own(Path(f"{stem}-course.csv"), table.encode())
    panels = [
        course({"": {step: value[place] for step, value in qualities.items()}}, title=title)
        for place, title in enumerate(("PSNR, dB", "SSIM"))
    ]
    panels.append(loss_curves({"": lowest}, size=(760, 300), title="lowest loss so far"))
    write_own(Path(f"{stem}-course.png"), to_png(stacked(panels)))


def course_of(result: Reconstruction, truth: Truth) -> dict[int, tuple[float, float]]:
    """Return a dictionary from each recorded step of an attack to the mean PSNR and the mean SSIM at this step.

    Args:
        result: A reconstruction whose trace holds the recorded iterates of the attack.
        truth: The client's samples.
    """
    assert result.trace is not None
    qualities = {}
    for step, variables in result.trace.snapshots:
        samples = truth.data.denormalise(variables["inputs"][: len(truth)]).clamp(0, 1).to(truth.inputs)
        paired = pair(samples, truth.inputs).apply(samples)
        qualities[step] = (float(psnr(paired, truth.inputs).mean()), float(ssim(paired, truth.inputs).mean()))
    return qualities


RECONSTRUCTION = Kind(reconstruct_client, ONE_MESSAGE, check=check_client, drawn=_drawn)
