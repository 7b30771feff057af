"""The ladder of an audit, which is a list of versions of the set-up that differ in samples, local steps or noise.

Each version is called a rung, and changes one of these values. The strongest attack of the audit is run on one client
of every rung. The results show up to which number of samples, number of local steps or size of noise the attack
succeeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from leakgauge.core.errors import LeakgaugeError
from leakgauge.evaluation.verdict import Finding, Verdict
from leakgauge.federation.defence import Defence
from leakgauge.federation.defences import build
from leakgauge.workflows.scenario import Scenario

SAMPLES = (1, 4, 16, 64)
LOCAL_STEPS = (1, 5, 25, 100)
NOISE = (1e-4, 1e-3, 1e-2, 1e-1)


@dataclass(frozen=True)
class Rung:
    """One rung of the ladder, which is the audited set-up with one changed value.

    Args:
        dimension: The name of the changed value: ``"samples"``, ``"local steps"`` or ``"noise"``.
        value: The changed value.
        scenario: The changed set-up.
        chain: The defences of the clients.
    """

    dimension: str
    value: float
    scenario: Scenario
    chain: tuple[Defence, ...] = ()

    @property
    def name(self) -> str:
        """The name of this version of the set-up, such as ``"local steps 5"``."""
        return f"{self.dimension} {self.value:g}"

    @property
    def weight(self) -> float:
        """The cost of an attack on this version of the set-up, relative to the cost for the smallest client."""
        return self.value if self.dimension != "noise" else float(self.scenario.samples)


def rungs_of(scenario: Scenario) -> dict[str, Rung]:
    """Return a dictionary from names to versions of a set-up, each with one changed value (rungs of the ladder).

    Versions with more samples than the dataset has are left out.

    Args:
        scenario: The audited set-up.
    """
    rungs = [Rung("samples", count, scenario.version(samples=count)) for count in SAMPLES]
    if scenario.training.get("sends", "weights") == "weights":
        versions = {count: scenario.version(batch_size=scenario.samples, epochs=count) for count in LOCAL_STEPS}
        rungs += [Rung("local steps", count, version) for count, version in versions.items()]
    rungs += [Rung("noise", sigma, scenario, (build("gaussian_noise", sigma=sigma, on="update"),)) for sigma in NOISE]
    return {rung.name: rung for rung in rungs if _works(rung)}


def _works(rung: Rung) -> bool:
    try:
        rung.scenario.share(0)
    except LeakgaugeError:  # too few samples
        return False
    return True


def strongest_attack(findings: Sequence[Finding]) -> str | None:
    """Return the attack whose result is furthest above chance, or ``None`` if no attack recovers samples.

    Args:
        findings: The results of attacks on the set-up and on easier versions of it.
    """
    strong = [one for one in findings if one.about_samples and one.verdict is Verdict.RECOVERS_DATA]
    best = max(strong, key=_excess, default=None)
    return None if best is None else best.attack


def _excess(finding: Finding) -> float:
    metric = "psnr" if "psnr" in finding.measures else "features"
    scale = 1.0 if metric == "psnr" else 100.0
    return scale * (finding.measures[metric].excess or 0.0)


def sentences(rungs: Mapping[str, Rung], findings: Sequence[Finding]) -> list[str]:
    """Return one sentence for each kind of changed value, such as samples or local steps.

    The sentence names the largest value at which the attack still recovered data, if there is such a value.

    Args:
        rungs: A dictionary from names to changed versions of the set-up.
        findings: The result of the attack on each changed version of the set-up.
    """
    reached: dict[str, list[tuple[float, bool]]] = {}
    for finding in findings:
        rung = rungs[finding.setup]
        success = finding.verdict is Verdict.RECOVERS_DATA
        reached.setdefault(rung.dimension, []).append((rung.value, success))
    return [_sentence(dimension, sorted(values)) for dimension, values in reached.items()]


def _sentence(dimension: str, values: Sequence[tuple[float, bool]]) -> str:
    through = [value for value, success in values if success]
    blocked = [value for value, success in values if not success]
    if not through:
        return f"{dimension.capitalize()}: the attack did not find data at {values[0][0]:g} or above."
    if not blocked:
        return f"{dimension.capitalize()}: data came back up to {through[-1]:g}, the largest value that was tried."
    gaps = [value for value in blocked if value < through[-1]]
    also = f" (but was not found at {', '.join(f'{value:g}' for value in gaps)})" if gaps else ""
    above = [value for value in blocked if value > through[-1]]
    end = f", and was not found at {above[0]:g}" if above else ""
    return f"{dimension.capitalize()}: data came back up to {through[-1]:g}{also}{end}."
