"""What each defence buys and what it costs: leakage against accuracy, one point a defence.

A document of :mod:`leakscope.setup` with two tables more:

======================  ===========================================================================================
``[frontier]``          ``attack`` and its ``options``, ``clients`` to attack, ``threshold`` in dB from which a sample
                        counts as recovered; ``federation`` clients with ``federation_samples`` each that train the
                        model for ``rounds`` rounds with ``federation_lr``, and ``test`` samples that it is tested on
``[[defence]]``         ``title``, ``chain``: a list of defences, each a table with its name and settings
======================  ===========================================================================================

Every defence is trained with by the code that is attacked. It is attacked twice, by an attacker who knows the defence
and by one who does not, and judged by the stronger of the two.
"""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from leakscope import attacks
from leakscope.attacks.adaptive import adapts
from leakscope.auditing.verdict import judge
from leakscope.container import Location, output_folder, write_atomically
from leakscope.errors import InvalidInput, UnknownName
from leakscope.federated.defence import Defence, clients_in_a_sum, training_of
from leakscope.federated.rounds import run_federation
from leakscope.kept import run_kept
from leakscope.metrics import Interval, mean_interval, score
from leakscope.progress import Report, silent
from leakscope.report import Page, Section, scatter, to_png, write_page
from leakscope.setup import NUMBER, Kinds, Setup, load_parts, read_chains, read_setup
from leakscope.sweep import Task, Watch

FRONTIER: Kinds = {
    "attack": (str,), "options": (dict,), "clients": (int,), "threshold": NUMBER, "federation": (int,),
    "federation_samples": (int,), "federation_lr": NUMBER, "rounds": (int,), "test": (int,),
}  # fmt: skip


@dataclass(frozen=True)
class Point:
    """One defence: what an attack gets back, and what is left of the model."""

    title: str
    defences: str
    accuracy: float
    epsilon: float | None
    psnr: Interval
    chance: float
    recovered: Interval
    recovered_chance: float
    clients: int
    knows: bool
    leaks: bool
    seconds: float

    def sentence(self) -> str:
        """What the point says, in words."""
        spread = "" if self.psnr.low is None else f" ({self.psnr.low:.1f} to {self.psnr.high:.1f})"
        who = "an attacker who knows it" if self.knows else "an attacker"
        cost = f"accuracy {100 * self.accuracy:.0f}%"
        if self.epsilon is not None:
            cost += f", epsilon {self.epsilon:.2g} spent"
        if not self.leaks:
            return (
                f"{self.title}: nothing above chance. {who.capitalize()} gets {self.psnr.mean:.1f} dB{spread}, "
                f"guessing {self.chance:.1f} dB ({self.clients} clients; {cost})."
            )
        return (
            f"{self.title}: leaks. {who.capitalize()} gets {self.psnr.mean:.1f} dB{spread} where guessing gives "
            f"{self.chance:.1f}, and recovers {100 * self.recovered.mean:.0f}% of samples, by chance "
            f"{100 * self.recovered_chance:.0f}% ({self.clients} clients; {cost})."
        )


@dataclass(frozen=True)
class Plan:
    """A frontier to be measured."""

    setup: Setup
    attack: str
    options: dict[str, Any]
    chains: dict[str, tuple[Defence, ...]]
    clients: int = 4
    threshold: float = 20.0
    federation: int = 20
    federation_samples: int = 50
    federation_lr: float | None = None
    rounds: int = 20
    test: int = 1000


def read_plan(document: Mapping[str, Any], where: str) -> Plan:
    """The plan in a document; everything that cannot work is refused here, before training starts."""
    rest = {key: value for key, value in document.items() if key != "defence"}
    setup = read_setup(rest, where, {"frontier": FRONTIER})
    table = dict(rest.get("frontier", {}))
    name, options = table.pop("attack", "inverting_gradients"), table.pop("options", {})
    if name not in attacks.ATTACKS:
        raise UnknownName(f"attack ({where}: [frontier] attack)", name, attacks.ATTACKS)
    attacks.build(name, **options)
    for key in table.keys() - {"threshold", "federation_lr"}:
        if table[key] < 1:
            raise InvalidInput(f"{where}: [frontier] {key} must be at least 1, not {table[key]}")
    load_parts(setup, where)
    chains = read_chains(document.get("defence", []), setup, where)
    if not chains:
        raise InvalidInput(f"{where}: there is no [[defence]] to try; add some, one with chain = [] for none")
    plan = Plan(setup, name, options, chains, **table)
    for chain in chains.values():
        if training_of(chain) is not None:  # what it cannot train, it refuses in the first client's round
            plan.setup.observe(0, chain, rounds=plan.rounds)
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
    runs (:mod:`leakscope.sweep.engines`).
    """
    tasks = [Task(title, measure_point, {"title": title}) for title in plan.chains]
    same = {
        **plan.setup.document,
        **{one.name: getattr(plan, one.name) for one in fields(plan) if one.name not in ("setup", "options", "chains")},
        "content": plan.setup.fingerprint,
        "attack": repr(attacks.build(plan.attack, **plan.options)),
    }
    defined_by = {title: {**same, "defences": list(map(repr, chain))} for title, chain in plan.chains.items()}
    options: dict[str, Any] = {"engine": engine, "jobs": jobs, "watch": watch, "common": {"plan": plan}}
    for task, point in run_kept(tasks, defined_by, folder, **options):
        yield point if isinstance(point, Point) else Point(**{**point, "title": task.name})


def measure_point(plan: Plan, title: str, report: Report) -> Point:
    """Train with one defence and attack clients that use it."""
    began = time.perf_counter()
    chain = plan.chains[title]
    accuracy, epsilon = _train(plan, chain)
    attack = attacks.build(plan.attack, **plan.options)
    useful = bool(chain) and adapts(attack, plan.setup.observe(0, chain, told=True, rounds=plan.rounds)[0])
    attackers = [False, True] if useful else [False]
    total = len(attackers) * plan.clients
    results = []
    for number, told in enumerate(attackers):
        scored = []
        for index in range(plan.clients):
            observation, truth = plan.setup.observe(index, chain, told=told, rounds=plan.rounds)
            result = attack(observation, seed=plan.setup.seed + index, progress=silent)
            if result.outcome.kind == "interrupted":
                raise KeyboardInterrupt
            scored.append(score(result, truth, threshold=plan.threshold))
            report(number * plan.clients + index + 1, total, result.loss)
        results.append((told, scored))
    knows, best = max(results, key=lambda one: sum(found["psnr"].mean for found in one[1]))
    values = {name: torch.tensor([found[name].mean for found in best]) for name in ("psnr", "recovered")}
    chances = {name: sum(found[name].chance for found in best) / len(best) for name in values}
    return Point(
        title,
        ", ".join(map(repr, chain)) or "none",
        accuracy,
        epsilon,
        mean_interval(values["psnr"], limits=(0.0, 100.0)),
        chances["psnr"],
        mean_interval(values["recovered"], limits=(0.0, 1.0)),
        chances["recovered"],
        plan.clients,
        knows,
        judge([{"psnr": found["psnr"].to_row()} for found in best]) == "recovers data",
        time.perf_counter() - began,
    )


def _train(plan: Plan, chain: Sequence[Defence]) -> tuple[float, float | None]:
    """The test accuracy of a federation with these defences, and the largest epsilon that a client has spent."""
    setup = plan.setup
    attacked = clients_in_a_sum(chain) * plan.clients * setup.samples
    clients = [setup.share(index, plan.federation_samples, first=attacked) for index in range(plan.federation)]
    used = attacked + plan.federation * plan.federation_samples
    recipe = setup.recipe | ({} if plan.federation_lr is None else {"lr": plan.federation_lr})
    trained = run_federation(
        setup.network(),
        clients,
        rounds=plan.rounds,
        defences=chain,
        test=setup.share(0, plan.test, first=used),
        test_every=plan.rounds,
        seed=setup.seed,
        **recipe,
        **{key: setup.training[key] for key in ("mode", "loss") if key in setup.training},
    )
    if trained.interrupted:
        raise KeyboardInterrupt
    return trained.history[-1][1], max(trained.spent.values(), default=None)


def write_frontier(points: Sequence[Point], plan: Plan, folder: Path, command: str = "") -> Path:
    """Write ``frontier.csv``, ``.json``, ``.png`` and the page; return the page's path."""
    output_folder(folder)
    rows = [_row(point) for point in points]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(folder / "frontier.csv", text.getvalue().encode())
    write_atomically(folder / "frontier.json", json.dumps([asdict(one) for one in points], indent=1).encode())
    picture = to_png(draw_frontier(points, plan))
    write_atomically(folder / "frontier.png", picture)
    leaking = [point.title for point in points if point.leaks]
    safe = [point.title for point in points if not point.leaks]
    verdict = f"Leaks: {', '.join(leaking) or 'none'}. Nothing above chance: {', '.join(safe) or 'none'}."
    page = Page(
        "Leakscope: what each defence buys, and what it costs",
        verdict,
        bool(leaking),
        (
            Section("Leakage against accuracy", (_reading(plan),), picture=picture, alt="leakage against accuracy"),
            Section("In words", [point.sentence() for point in points]),
            Section("Figures", table=[list(rows[0]), *([str(value) for value in row.values()] for row in rows)]),
            Section("How to run it again", code=command or "leakscope frontier CONFIG"),
        ),
    )
    return write_page(page, folder / "frontier.html")


def draw_frontier(points: Sequence[Point], plan: Plan) -> Any:
    """The figure: the lower and the further right, the better."""
    return scatter(
        {point.title: (100 * point.accuracy, point.psnr.mean, point.leaks) for point in points},
        across="test accuracy, %",
        up="PSNR of what comes back, dB",
        line=(sum(point.chance for point in points) / len(points), "guessing"),
        title=f"{plan.attack}, {plan.clients} clients of {plan.setup.dataset.name}, {plan.setup.samples} samples each",
    )


def _reading(plan: Plan) -> str:
    return (
        "Each point is a defence. Further right is a better model, further down less comes back; on the dashed line "
        "the attack gives no more than guessing without any update. Accuracy is that of a federation of "
        f"{plan.federation} clients with {plan.federation_samples} samples each after {plan.rounds} rounds with the "
        "defence; attacked were clients in the first round, once by an attacker who knows the defence and once by one "
        "who does not, and the stronger one counts."
    )


def _row(point: Point) -> dict[str, Any]:
    return {
        "defence": point.title,
        "accuracy": f"{point.accuracy:.3f}",
        "epsilon": "-" if point.epsilon is None else f"{point.epsilon:.3g}",
        "psnr": f"{point.psnr.mean:.2f}",
        "low": "-" if point.psnr.low is None else f"{point.psnr.low:.2f}",
        "high": "-" if point.psnr.high is None else f"{point.psnr.high:.2f}",
        "chance": f"{point.chance:.2f}",
        "recovered": f"{point.recovered.mean:.3f}",
        "by chance": f"{point.recovered_chance:.3f}",
        "clients": point.clients,
        "attacker": "knows the defence" if point.knows else "does not know it",
        "verdict": "leaks" if point.leaks else "nothing above chance",
    }
