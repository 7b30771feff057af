"""The demonstration: eight clients send one gradient each, and the server looks at their digits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from leakscope import __version__
from leakscope.attacks import Reconstruction, idlg
from leakscope.container import output_folder, write_atomically
from leakscope.data import Dataset, load
from leakscope.federated.client import fedsgd
from leakscope.metrics import Interval, Score, mean_interval, score
from leakscope.models import build
from leakscope.observation import Observation
from leakscope.report import Page, Section, contact_sheet, to_png, write_page
from leakscope.seeding import generator
from leakscope.truth import Truth

HEAD = ("client", "digit", "label", "PSNR dB", "chance", "SSIM", "chance", "steps", "seconds", "outcome")


@dataclass(frozen=True)
class Case:
    """One client of the demonstration."""

    observation: Observation
    truth: Truth
    result: Reconstruction
    score: Score

    def row(self) -> tuple[str, ...]:
        """The client's row of the table."""
        psnr, ssim = self.score["psnr"], self.score["ssim"]
        label = "-" if self.result.labels is None else str(int(self.result.labels[0]))
        return (
            self.observation.client,
            str(int(self.truth.targets[0])),
            label,
            f"{psnr.mean:.1f}",
            f"{psnr.chance:.1f}",
            f"{ssim.mean:.3f}",
            f"{ssim.chance:.3f}",
            str(self.result.outcome.step + 1),
            f"{self.result.seconds:.1f}",
            self.result.outcome.kind,
        )


@dataclass(frozen=True)
class Demo:
    """What the demonstration found, and where it wrote it."""

    cases: list[Case]
    verdict: str
    leaks: bool
    picture: Path
    page: Path


def run_demo(output: Path, *, clients: int = 8, seed: int = 0, report: Callable[[str], None] = print) -> Demo:
    """Attack ``clients`` clients that each send the gradient of one MNIST digit; write a picture and a page.

    ``report`` gets a line as each client is done. An interrupt ends with what there is by then.
    """
    output_folder(output)
    dataset = load("mnist5k")
    model = build("lenet", shape=dataset.spec.shape, classes=10, seed=seed)
    attack = idlg()
    cases: list[Case] = []
    for number, row in enumerate(_one_of_each(dataset, clients, seed)):
        observation, truth = fedsgd(model, dataset.share([row]), client=f"client-{number}", seed=seed)
        result = attack(observation, seed=seed)
        cases.append(Case(observation, truth, result, score(result, truth)))
        report(f"{observation.client}: {cases[-1].score['psnr'].mean:.1f} dB; {result.outcome}")
        if result.outcome.kind == "interrupted":
            break
    verdict, leaks = _verdict(cases)
    sheet = contact_sheet(
        {
            "original": torch.cat([case.truth.inputs for case in cases]),
            "reconstructed": torch.cat([case.result.samples for case in cases]),
        },
        {"reconstructed": [f"{case.score['psnr'].mean:.1f} dB" for case in cases]},
    )
    picture = output / "demo.png"
    write_atomically(picture, to_png(sheet))
    page = write_page(_page(cases, verdict, leaks, to_png(sheet), attack, seed), output / "demo.html")
    return Demo(cases, verdict, leaks, picture, page)


def _one_of_each(dataset: Dataset, clients: int, seed: int) -> list[int]:
    """A random row of each class in turn."""
    draw = generator(seed, "demo")
    rows = []
    for number in range(clients):
        candidates = (dataset.targets == number % 10).nonzero().flatten()
        rows.append(int(candidates[torch.randint(len(candidates), (), generator=draw)]))
    return rows


def _verdict(cases: list[Case]) -> tuple[str, bool]:
    values = torch.tensor([case.score["psnr"].mean for case in cases])
    chance = sum(case.score["psnr"].chance for case in cases) / len(cases)
    back = sum(case.score["recovered"].mean > 0 for case in cases)
    labels = sum(case.score["label_errors"].mean == 0 for case in cases)
    return (
        f"{back} of {len(cases)} digits were rebuilt from one gradient each (PSNR above 20 dB), and {labels} of "
        f"{len(cases)} labels read; the mean PSNR is {_interval(mean_interval(values))} dB, where guessing without "
        f"the gradient gives {chance:.1f} dB.",
        back > 0,
    )


def _interval(value: Interval) -> str:
    if value.low is None or value.high is None:
        return f"{value.mean:.1f}"
    return f"{value.mean:.1f} (95% interval {value.low:.1f} to {value.high:.1f})"


def _page(cases: list[Case], verdict: str, leaks: bool, picture: bytes, attack: object, seed: int) -> Page:
    settings = f"leakscope {__version__}\nattack   {attack!r}\nmodel    lenet, untrained, seed {seed}\nseed     {seed}"
    return Page(
        title="Leakscope demonstration: one gradient, one digit",
        verdict=verdict,
        leaks=leaks,
        sections=(
            Section("What came back", picture=picture, alt="Original digits over their reconstructions"),
            Section(
                "In figures",
                ("Chance is what an attacker gets without the gradient: the best of a mean image, a blank one and "
                 "other people's digits.",),
                (HEAD, *(case.row() for case in cases)),
            ),
            Section("Who the attacker is", cases[0].observation.threat_model()),
            Section(
                "How to run it again",
                ("This is a small untrained network and one sample a client, the easiest case for an attacker. It "
                 "shows that the pipeline works, not that every set-up leaks.",),
                code=f"leakscope demo --seed {seed} --clients {len(cases)}\n\n{settings}",
            ),
        ),
    )  # fmt: skip
