"""What each defence buys and what it costs: leakage against accuracy, one point a defence.

A document of :mod:`leakgauge.workflows.scenario` with two tables more:

======================  ===========================================================================================
``[frontier]``          ``attack`` and its ``options`` (``attribute_inference`` for a table's sensitive column),
                        ``clients`` to attack, ``threshold`` in dB from which a sample counts as recovered;
                        ``federation`` clients with ``federation_samples`` each that train the model for ``rounds``
                        rounds with ``federation_lr``, and ``test`` samples that it is tested on
``[[defence]]``         ``title``, ``chain``: a list of defences, each a table with its name and settings
======================  ===========================================================================================

Every defence is trained with by the code that is attacked. It is attacked twice, by an attacker who knows the defence
and by one who does not, and judged by the stronger of the two.
"""

from __future__ import annotations

import csv
import io
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from leakgauge.core.container import Location, output_folder, write_atomically
from leakgauge.core.errors import InvalidInput
from leakgauge.core.progress import Report, silent
from leakgauge.evaluation.verdict import VERDICTS, Figure, Verdict, judge, summarise
from leakgauge.federation.defence import Defence, clients_in_a_sum, training_of
from leakgauge.federation.rounds import run_federation
from leakgauge.reports import Page, Section, scatter, to_png, write_page
from leakgauge.runtime import Task, Watch
from leakgauge.runtime.kept import run_kept
from leakgauge.workflows.audit.attackers import Attacker, read_attacker
from leakgauge.workflows.scenario import NUMBER, Kinds, Scenario, load_parts, read_chains, read_scenario

FRONTIER: Kinds = {
    "attack": (str,), "options": (dict,), "clients": (int,), "threshold": NUMBER, "federation": (int,),
    "federation_samples": (int,), "federation_lr": NUMBER, "rounds": (int,), "test": (int,),
}  # fmt: skip


#: What leakage is measured by, the first one that an attack has in the sentence of a point: name, factor and unit.
LEAKAGE: dict[str, tuple[str, float, str]] = {
    "psnr": ("PSNR of what comes back", 1.0, " dB"),
    "features": ("share of a record's features that come back", 100.0, "%"),
    "attribute_accuracy": ("share of sensitive values inferred", 100.0, "%"),
    "recovered": ("share of samples recovered", 100.0, "%"),
}


@dataclass(frozen=True)
class Point:
    """One defence: what an attack gets back, and what is left of the model.

    ``utility`` is the test accuracy, or for a regression the mean squared error; ``leakage`` are the figures over
    clients of those metrics of :data:`LEAKAGE` that the attack has.
    """

    title: str
    defences: str
    utility: float
    epsilon: float | None
    leakage: dict[str, Figure]
    knows: bool
    verdict: Verdict
    seconds: float

    @property
    def leaks(self) -> bool:
        """Whether the attack gets anything above chance."""
        return self.verdict != "nothing above chance"

    def sentence(self, plan: Plan) -> str:
        """What the point says, in words."""
        metric, *others = self.leakage
        figure, (what, factor, unit) = self.leakage[metric], LEAKAGE[metric]
        spread = "" if figure.low is None else f" ({factor * figure.low:.1f} to {factor * (figure.high or 0):.1f})"
        found = f"{what} {factor * figure.mean:.1f}{unit}{spread}, by guessing {factor * figure.chance:.1f}{unit}"
        for metric in others:
            figure, (what, factor, unit) = self.leakage[metric], LEAKAGE[metric]
            found += f"; {what} {factor * figure.mean:.0f}{unit}, by guessing {factor * figure.chance:.0f}{unit}"
        cost = f"accuracy {100 * self.utility:.0f}%" if plan.classifies else f"mean squared error {self.utility:.3g}"
        if self.epsilon is not None:
            cost += f", epsilon {self.epsilon:.2g} spent"
        who = " The attacker knows the defence." if self.knows else ""
        return f"{self.title}: {self.verdict}. {found[0].upper()}{found[1:]} ({figure.clients} clients; {cost}).{who}"


@dataclass(frozen=True)
class Plan:
    """A frontier to be measured."""

    scenario: Scenario
    name: str
    attack: Attacker
    chains: dict[str, tuple[Defence, ...]]
    clients: int = 4
    threshold: float = 20.0
    federation: int = 20
    federation_samples: int = 50
    federation_lr: float | None = None
    rounds: int = 20
    test: int = 1000

    @property
    def classifies(self) -> bool:
        """Whether the model names a class, so that its utility is an accuracy."""
        return self.scenario.dataset.spec.classes is not None


def read_plan(document: Mapping[str, Any], where: str) -> Plan:
    """The plan in a document; everything that cannot work is refused here, before training starts."""
    rest = {key: value for key, value in document.items() if key != "defence"}
    scenario = read_scenario(rest, where, {"frontier": FRONTIER})
    table = dict(rest.get("frontier", {}))
    name, options = table.pop("attack", "inverting_gradients"), table.pop("options", {})
    for key in table.keys() - {"threshold", "federation_lr"}:
        if table[key] < 1:
            raise InvalidInput(f"{where}: [frontier] {key} must be at least 1, not {table[key]}")
    load_parts(scenario, where)
    attack = read_attacker(name, options, scenario.dataset.sensitive, f"{where}: [frontier] attack")
    chains = read_chains(document.get("defence", []), scenario, where)
    if not chains:
        raise InvalidInput(f"{where}: there is no [[defence]] to try; add some, one with chain = [] for none")
    plan = Plan(scenario, name, attack, chains, **table)
    for chain in chains.values():
        if training_of(chain) is not None:  # what it cannot train, it refuses in the first client's round
            plan.scenario.observe(0, chain, participations=plan.rounds)
    return plan


def measure_frontier(
    plan: Plan,
    *,
    folder: Location | None = None,
    engine: str = "auto",
    jobs: int | None = 1,
    watch: Watch | None = None,
) -> Iterator[Point]:
    """Train and attack with every defence; yield each point as soon as it is known.

    Points are kept in ``folder``, if there is one, and not measured again. ``engine`` and ``jobs`` say where the work
    runs (:mod:`leakgauge.runtime.engines`).
    """
    tasks = [Task(title, measure_point, {"title": title}) for title in plan.chains]
    same = {
        **plan.scenario.document,
        **{
            one.name: getattr(plan, one.name)
            for one in fields(plan)
            if one.name not in ("scenario", "attack", "chains")
        },
        "content": plan.scenario.fingerprint,
        "attack": repr(plan.attack),
        "point": [one.name for one in fields(Point)],
    }
    defined_by = {title: {**same, "defences": list(map(repr, chain))} for title, chain in plan.chains.items()}
    options: dict[str, Any] = {"engine": engine, "jobs": jobs, "watch": watch, "common": {"plan": plan}}
    for task, point in run_kept(tasks, defined_by, folder, **options):
        yield point if isinstance(point, Point) else _point({**point, "title": task.name})


def _point(kept: dict[str, Any]) -> Point:
    return Point(**{**kept, "leakage": {name: Figure(**figure) for name, figure in kept["leakage"].items()}})


def measure_point(plan: Plan, title: str, report: Report) -> Point:
    """Train with one defence and attack clients that use it."""
    began = time.perf_counter()
    chain = plan.chains[title]
    utility, epsilon = _train(plan, chain)
    useful = bool(chain) and plan.attack.adapts(
        plan.scenario.observe(0, chain, knows_defence=True, participations=plan.rounds)[0]
    )
    attackers = [False, True] if useful else [False]
    total = len(attackers) * plan.clients
    results = []
    for number, told in enumerate(attackers):
        scores = []
        for index in range(plan.clients):
            observation, truth = plan.scenario.observe(index, chain, knows_defence=told, participations=plan.rounds)
            seed = plan.scenario.seed + index
            document, _ = plan.attack(observation, truth, seed=seed, threshold=plan.threshold, report=silent)
            scores.append(document["scores"])
            loss = math.nan if document["loss"] is None else document["loss"]
            report(number * plan.clients + index + 1, total, loss)
        figures = summarise(scores)
        results.append((told, scores, {name: figures[name] for name in LEAKAGE if name in figures}))
    knows, best, leakage = max(results, key=lambda one: next(iter(one[2].values())).mean)
    verdict = judge([{name: score[name] for name in leakage} for score in best])
    defences = ", ".join(map(repr, chain)) or "none"
    return Point(title, defences, utility, epsilon, leakage, knows, verdict, time.perf_counter() - began)


def _train(plan: Plan, chain: Sequence[Defence]) -> tuple[float, float | None]:
    """The utility of a federation with these defences, and the largest epsilon that a client has spent."""
    scenario = plan.scenario
    attacked = clients_in_a_sum(chain) * plan.clients * scenario.samples
    clients = [scenario.share(index, plan.federation_samples, first=attacked) for index in range(plan.federation)]
    used = attacked + plan.federation * plan.federation_samples
    recipe = scenario.recipe | ({} if plan.federation_lr is None else {"lr": plan.federation_lr})
    trained = run_federation(
        scenario.network(),
        clients,
        rounds=plan.rounds,
        defences=chain,
        test=scenario.share(0, plan.test, first=used),
        test_every=plan.rounds,
        seed=scenario.seed,
        **recipe,
        **{key: scenario.training[key] for key in ("mode", "loss") if key in scenario.training},
    )
    if trained.interrupted:
        raise KeyboardInterrupt
    return trained.history[-1][1], max(trained.spent.values(), default=None)


def write_frontier(points: Sequence[Point], plan: Plan, folder: Path, command: str = "") -> Path:
    """Write ``frontier.csv``, ``.json``, the pictures and the page; return the page's path.

    ``frontier.png`` shows the first metric of the points' leakage, ``frontier-METRIC.png`` each other one.
    """
    output_folder(folder)
    rows = [_row(point, plan) for point in points]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(folder / "frontier.csv", text.getvalue().encode())
    write_atomically(folder / "frontier.json", json.dumps([asdict(one) for one in points], indent=1).encode())
    sections: list[Section] = []
    for metric in points[0].leakage:
        what = LEAKAGE[metric][0]
        picture = to_png(draw_frontier(points, plan, metric))
        write_atomically(folder / (f"frontier-{metric}.png" if sections else "frontier.png"), picture)
        reading = () if sections else (_reading(plan),)
        sections.append(Section(what[0].upper() + what[1:], reading, picture=picture, alt=f"{what}, by defence"))
    by_verdict = {verdict: [point.title for point in points if point.verdict == verdict] for verdict in VERDICTS}
    said = [f"{verdict.capitalize()}: {'; '.join(titles)}." for verdict, titles in by_verdict.items() if titles]
    page = Page(
        "Leakgauge: what each defence buys, and what it costs",
        " ".join(said),
        any(point.leaks for point in points),
        (
            *sections,
            Section("In words", [point.sentence(plan) for point in points]),
            Section("Figures", table=[list(rows[0]), *([str(value) for value in row.values()] for row in rows)]),
            Section("How to run it again", code=command or "leakgauge frontier CONFIG"),
        ),
    )
    return write_page(page, folder / "frontier.html")


def draw_frontier(points: Sequence[Point], plan: Plan, metric: str) -> Any:
    """The figure of one metric: the lower and the better the model, the better."""
    what, factor, unit = LEAKAGE[metric]
    of = plan.scenario.samples
    better = "right and down" if plan.classifies else "left and down"
    return scatter(
        {
            _title(point): (
                100 * point.utility if plan.classifies else point.utility,
                factor * point.leakage[metric].mean,
                point.leaks,
            )
            for point in points
        },
        across="test accuracy, %" if plan.classifies else "mean squared error of the model",
        up=f"{what}, {unit.strip()}",
        line=(factor * sum(point.leakage[metric].chance for point in points) / len(points), "guessing"),
        title=f"{plan.name}, {plan.clients} clients of {plan.scenario.dataset.name}, {of} sample{'s' * (of > 1)} each",
        legend=("leaks", "nothing above chance", f"better: {better}"),
    )


def _title(point: Point) -> str:
    """The name of a point, with the epsilon that was spent unless the name tells it."""
    told = point.epsilon is None or "epsilon" in point.title.lower()
    return point.title if told else f"{point.title} (epsilon {point.epsilon:.2g})"


def _reading(plan: Plan) -> str:
    utility = "Further right is a better model" if plan.classifies else "Further left is a better model"
    return (
        f"Each point is a defence. {utility}, further down less comes back; on the dashed line the attack gives no "
        f"more than guessing without any update. The model is that of a federation of {plan.federation} clients with "
        f"{plan.federation_samples} samples each after {plan.rounds} rounds with the defence; attacked were clients in "
        "the first round, once by an attacker who knows the defence and once by one who does not, and the stronger one "
        "counts."
    )


def _row(point: Point, plan: Plan) -> dict[str, Any]:
    row: dict[str, Any] = {
        "defence": point.title,
        "accuracy" if plan.classifies else "mean squared error": f"{point.utility:.3g}",
        "epsilon": "-" if point.epsilon is None else f"{point.epsilon:.3g}",
    }
    for metric, figure in point.leakage.items():
        row[metric] = f"{figure.mean:.4g}"
        row[f"{metric}, 95%"] = "-" if figure.low is None else f"{figure.low:.4g} to {figure.high:.4g}"
        row[f"{metric} by chance"] = f"{figure.chance:.4g}"
    return {
        **row,
        "clients": plan.clients,
        "attacker": "knows the defence" if point.knows else "does not know it",
        "verdict": point.verdict,
    }
