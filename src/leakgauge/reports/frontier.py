"""The report of a frontier, which consists of an HTML page, pictures, ``frontier.json`` and ``frontier.csv``.

A frontier compares defences by what an attacker still recovers and by the accuracy that each defence costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from leakgauge.core.container import output_folder
from leakgauge.core.measure import Measure
from leakgauge.core.own_files import write_own
from leakgauge.evaluation.support import below_chance
from leakgauge.evaluation.verdict import Verdict
from leakgauge.reports.findings import document, shared_sections, write_csv, write_json
from leakgauge.reports.page import Page, Section, write_page
from leakgauge.reports.pictures import to_png
from leakgauge.reports.scatter import scatter, stacked

if TYPE_CHECKING:
    from PIL import Image

    from leakgauge.workflows.frontier import Frontier, Point
    from leakgauge.workflows.frontier_plan import FrontierPlan

#: The metric of attacks on the owners of records.
SOURCES = "source_accuracy"
#: The description, the factor and the unit of each metric of leakage. A value is shown as factor times value, with the
#: unit.
LEAKAGE: dict[str, tuple[str, float, str]] = {
    "psnr": ("PSNR of what comes back", 1.0, " dB"),
    "features": ("share of a record's features that come back", 100.0, "%"),
    "attribute_accuracy": ("share of sensitive values inferred", 100.0, "%"),
    "recovered": ("share of samples recovered", 100.0, "%"),
    SOURCES: ("share of records whose client is found", 100.0, "%"),
}


def write_frontier(frontier: Frontier, folder: Path, command: str = "") -> Path:
    """Write the page, the pictures, ``frontier.json`` and ``frontier.csv``, and return the path of the page.

    ``frontier.png`` shows the first metric of leakage, and below it the owners of records, if there is an attack on
    them. Each other metric is shown in ``frontier-METRIC.png``.

    Args:
        frontier: The measured frontier.
        folder: The folder for the files.
        command: The command line, which the page shows.
    """
    output_folder(folder)
    plan, points = frontier.plan, frontier.points
    rows = [_row(point, plan) for point in points]
    write_csv(rows, folder / "frontier.csv")
    write_json({**document(frontier), "points": [_plain(point) for point in points]}, folder / "frontier.json")
    first, *others = points[0].leakage
    together = [first] if plan.sources is None else [first, SOURCES]
    sections: list[Section] = []
    for number, metrics in enumerate([together, *([metric] for metric in others if metric not in together)]):
        picture = to_png(stacked([draw_frontier(points, plan, metric) for metric in metrics]))
        write_own(folder / (f"frontier-{metrics[0]}.png" if number else "frontier.png"), picture)
        reading = () if number else (_reading(plan),)
        described = ", and ".join(LEAKAGE[metric][0] for metric in metrics)
        heading = described[0].upper() + described[1:]
        sections.append(Section(heading, reading, picture=picture, alt=f"{described}, by defence"))
    by_verdict = {one: [point.title for point in points if point.worst is one] for one in Verdict}
    words = [f"{str(one).capitalize()}: {'; '.join(titles)}." for one, titles in by_verdict.items() if titles]
    page = Page(
        "Leakgauge frontier",
        frontier.verdict,
        " ".join(words),
        (
            *shared_sections(frontier),
            *sections,
            Section("In words", [sentence(point, plan) for point in points]),
            Section("Figures", table=[list(rows[0]), *([str(value) for value in row.values()] for row in rows)]),
            Section("How to run it again", code=command or "leakgauge frontier CONFIG"),
        ),
    )
    return write_page(page, folder / "frontier.html")


def sentence(point: Point, plan: FrontierPlan) -> str:
    """Return a text about one defence, with its verdict, its leakage and its accuracy.

    Args:
        point: The point of the frontier for this defence.
        plan: The settings of the frontier.
    """
    parts = [
        _leakage(metric, measure, short=place > 0) for place, (metric, measure) in enumerate(point.leakage.items())
    ]
    clients = next(iter(point.leakage.values())).n
    cost = f"Accuracy {100 * point.utility:.0f}%" if plan.classifies else f"Mean squared error {point.utility:.3g}"
    if point.epsilon is not None:
        cost += f", epsilon {point.epsilon:.2g} spent"
    attacker = " The attacker knows the defence." if point.knows_defence else ""
    leakage = "; ".join(parts)
    start = f"{point.title}: {point.worst}. {leakage[0].upper()}{leakage[1:]}, over {clients} clients"
    return f"{start}{_failed(point.leakage, point.failed)}. {cost}.{attacker}{_with_public(point, plan)}"


def _failed(leakage: Mapping[str, Measure], noticed: bool = False) -> str:
    """Return a remark if an attack ended below chance, or noticed that it had failed and returned a guess."""
    if noticed:
        return ", where the attack failed for some clients and returned a guess"
    return "" if below_chance(leakage) is None else ", which is below the guess, so this attack failed"


def _with_public(point: Point, plan: FrontierPlan) -> str:
    """Return a sentence about the attacker with public data, if there is one."""
    if point.public is None or plan.scenario.public is None:
        return ""
    metric, measure = next(iter(point.public.leakage.items()))
    known = " and knows the defence" if point.public.knows_defence else ""
    return (
        f" An attacker who has {plan.scenario.public.name}{known}: {point.public.verdict}, "
        f"{_leakage(metric, measure, short=False)}{_failed(point.public.leakage)}. {point.public.reason}"
    ).rstrip()


def _leakage(metric: str, measure: Measure, *, short: bool) -> str:
    description, factor, unit = LEAKAGE[metric]
    chance = factor * (measure.chance or 0.0)
    if short:
        return f"{description} {factor * measure.value:.0f}{unit} (chance {chance:.0f}{unit})"
    spread = "" if measure.low is None else f", {factor * measure.low:.1f} to {factor * (measure.high or 0):.1f}"
    return f"{description} {factor * measure.value:.1f}{unit} (chance {chance:.1f}{unit}{spread})"


def draw_frontier(points: Sequence[Point], plan: FrontierPlan, metric: str) -> Image.Image:
    """Draw one point for each defence, with its accuracy and one metric of leakage. Lower points leak less.

    Args:
        points: The points of the frontier, one for each defence.
        plan: The settings of the frontier.
        metric: The metric of leakage, such as "psnr".
    """
    description, factor, unit = LEAKAGE[metric]
    samples = plan.scenario.samples
    attack = plan.sources.name if metric == SOURCES and plan.sources is not None else plan.attack.name
    better = "right and down" if plan.classifies else "left and down"
    chances = [point.leakage[metric].chance or 0.0 for point in points]
    line = median(chances)
    return scatter(
        {
            _title(point) + _own_chance(point.leakage[metric], metric, line): (
                100 * point.utility if plan.classifies else point.utility,
                factor * point.leakage[metric].value,
                bool(point.verdict_on(metric).leaks),
            )
            for point in points
        },
        across="test accuracy, %" if plan.classifies else "mean squared error of the model",
        up=f"{description}, {unit.strip()}",
        line=(factor * line, "guessing"),
        seconds=_second_values(points, metric, line) if metric != SOURCES else None,
        title=(
            f"{attack}, {plan.clients} clients of {plan.scenario.dataset.name}, "
            f"{samples} sample{'s' * (samples > 1)} each"
        ),
        legend=("leaks", "nothing found", f"{_squares(plan, metric)}better: {better}"),
    )


def _squares(plan: FrontierPlan, metric: str) -> str:
    """Return the meaning of the squares of a picture."""
    return "squares: with public data   " if plan.public is not None and metric != SOURCES else ""


def _second_values(points: Sequence[Point], metric: str, line: float) -> dict[str, tuple[float, bool]]:
    """Return the values of the attacker with public data."""
    factor = LEAKAGE[metric][1]
    return {
        _title(point) + _own_chance(point.leakage[metric], metric, line): (
            factor * point.public.leakage[metric].value,
            bool(point.public.verdict.leaks),
        )
        for point in points
        if point.public is not None and metric in point.public.leakage
    }


def _own_chance(measure: Measure, metric: str, line: float) -> str:
    """Return a remark if a guess is right much less or much more often than at the line of the picture."""
    _, factor, unit = LEAKAGE[metric]
    chance = measure.chance or 0.0
    return "" if abs(chance - line) <= 0.2 * abs(line) else f" (guess {factor * chance:.2g}{unit})"


def _title(point: Point) -> str:
    """Return the title of a defence's point in the picture, with the spent privacy budget epsilon.

    Epsilon is left out if the title contains it already or if the defence has no budget.
    """
    named = point.epsilon is None or "epsilon" in point.title.lower()
    return point.title if named else f"{point.title} (epsilon {point.epsilon:.2g})"


def _reading(plan: FrontierPlan) -> str:
    utility = "Further right is a better model" if plan.classifies else "Further left is a better model"
    return (
        f"Each point is a defence. {utility}, and further down less comes back. On the dashed line the attack gives no "
        f"more than guessing without any update. The model is that of a federation of {plan.federation} clients with "
        f"{plan.federation_samples} samples each, after {plan.rounds} rounds with the defence. The attacked clients "
        "are in their first round. Each was attacked by an attacker who knows the defence and by one who does not, and "
        "the stronger one counts. A ring on or near the dashed line may also be an attack that failed. The verdicts "
        f"below say which.{_reading_of_public(plan)}{_reading_of_owners(plan)}"
    )


def _reading_of_public(plan: FrontierPlan) -> str:
    if plan.public is None or plan.scenario.public is None:
        return " The attacker has no public data of the same kind. Grant some with --public."
    return (
        f" A square is an attacker who also has {plan.scenario.public.name}, and learns from them. Its guess without a "
        "message is better too, so a square counts as a leak only if the message adds something."
    )


def _reading_of_owners(plan: FrontierPlan) -> str:
    if plan.sources is None:
        return ""
    return (
        " For owners, the attacker sees the messages of all clients of one round and knows their records, but not "
        "whose they are. From sums of several clients, it guesses one client of the sum."
    )


def _row(point: Point, plan: FrontierPlan) -> dict[str, Any]:
    row: dict[str, Any] = {
        "defence": point.title,
        "accuracy" if plan.classifies else "mean squared error": f"{point.utility:.3g}",
        "epsilon": "-" if point.epsilon is None else f"{point.epsilon:.3g}",
    }
    for metric, measure in point.leakage.items():
        row[metric] = f"{measure.value:.4g}"
        row[f"{metric}, 95%"] = measure.interval()
        row[f"{metric} by chance"] = f"{measure.chance:.4g}"
    for metric, measure in ({} if point.public is None else point.public.leakage).items():
        row[f"{metric} with public data"] = f"{measure.value:.4g}"
        row[f"{metric} with public data, 95%"] = measure.interval()
        row[f"{metric} by chance with public data"] = f"{measure.chance:.4g}"
    return {
        **row,
        "clients": plan.clients_of(point.title),
        "attacker": "knows the defence" if point.knows_defence else "does not know it",
        "verdict": str(point.worst),
    }


def _plain(point: Point) -> dict[str, Any]:
    leakage = {name: measure.to_row() for name, measure in point.leakage.items()}
    owners = None if point.owners is None else str(point.owners.verdict)
    public = None
    if point.public is not None:
        measures = {name: measure.to_row() for name, measure in point.public.leakage.items()}
        public = {**vars(point.public), "leakage": measures, "verdict": str(point.public.verdict)}
    return {**vars(point), "leakage": leakage, "verdict": str(point.verdict), "owners": owners, "public": public}
