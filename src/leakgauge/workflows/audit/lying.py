"""The share of a client that a malicious server would take in an audit: a forecast, and a short replay.

The server prepares its weights from samples that no client of the audit holds, and knows of the recipe what the
audit's attacker knows. The verdict of an audit is about an honest-but-curious server and does not change.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from leakgauge.attacks.analytic.dense import DoesNotFit
from leakgauge.attacks.local_model import GlobalModel
from leakgauge.attacks.malicious import Trapped, plant, trap_read_off, with_added_block
from leakgauge.attacks.malicious.block import UNITS
from leakgauge.core.errors import LeakgaugeError
from leakgauge.core.local_training import LocalTraining
from leakgauge.core.observation import Observation
from leakgauge.core.one_gradient import mixes_linearly
from leakgauge.core.params import Params, buffers_of
from leakgauge.core.truth import Truth
from leakgauge.evaluation.returned import returned
from leakgauge.federation.defence import Defence
from leakgauge.federation.rounds import evaluate
from leakgauge.runtime.cache import Cache
from leakgauge.runtime.ctrl_c import stopping
from leakgauge.workflows.scenario import Scenario

if TYPE_CHECKING:
    from leakgauge.workflows.audit.plan import AuditPlan

#: The largest number of samples that the server has.
PUBLIC = 500
#: The seconds after which no further replay starts.
SECONDS = 20.0
#: The share of an audit's budget that replays may take, and the seconds that they may always take.
LARGEST_SHARE, LEAST_SECONDS = 0.1, 2.0
#: Models with more weights are not copied several times for a replay, and an added block has no more.
MOST_WEIGHTS = 50_000_000
#: The largest number of values of a sample for which the server's weights are prepared within an audit.
LARGEST_SAMPLE = 20_000
MOST_OF_BLOCK, FEWEST_UNITS = 10_000_000, 32
#: What a malicious server changes, and the rule that observations name.
WAYS = {"weights only": "trap_rows", "an added block": "added_block"}


@dataclass(frozen=True)
class Lie:
    """One way in which a malicious server takes samples.

    Args:
        way: What the server changes.
        reason: Why this way is not open, or was not tried, in words. It is empty if it is open.
        tried: Whether this way was tried. A way that was not tried may be open.
        traps: The number of traps.
        samples: The number of samples in one message.
        formula: The share of samples that are alone in a trap, (1 - 1/K)^(B-1).
        expected: The share of samples that the attack is expected to return.
        returned: The number of samples that came back in a replay, by the title of the defence.
        loss: The client's loss of the planted weights, and of the honest ones.
        accuracy: The accuracy of the planted weights on the client's samples, and of the honest ones.
    """

    way: str
    reason: str = ""
    tried: bool = True
    traps: int = 0
    samples: int = 0
    formula: float = 0.0
    expected: float = 0.0
    returned: dict[str, int] | None = None
    loss: tuple[float, float] | None = None
    accuracy: tuple[float, float] | None = None

    @property
    def most(self) -> int:
        """The largest number of samples that came back in a replay, or the expected number without a replay."""
        return max(self.returned.values()) if self.returned else round(self.expected * self.samples)

    @property
    def words(self) -> str:
        """The way in words, and whether its number is a replay's."""
        change = "on this architecture" if self.way == "weights only" else "if it also adds a block to the architecture"
        told = (
            "a forecast" if not self.returned else "replayed" if self.most else "the replay failed, which shows nothing"
        )
        return f"{change} ({told})"

    @property
    def sentence(self) -> str:
        """The outcome of this way in words."""
        if not self.tried:
            return f"{self.way}: not tried, because {self.reason}."
        if self.reason:
            return f"{self.way}: not by the attacks known here, because {self.reason}."
        replayed = self.returned or {}
        parts = [f"{count} of {self.samples} with {title}" for title, count in replayed.items()]
        shown = f" A replay returned {', '.join(parts)}." if parts else " There was no time for a replay."
        seen = ""
        if self.loss is not None:
            seen = f" The client sees a loss of {self.loss[0]:.3g} in place of {self.loss[1]:.3g}"
            if self.accuracy is not None:
                seen += f", and an accuracy of {self.accuracy[0]:.0%} in place of {self.accuracy[1]:.0%}"
            seen += "."
        return (
            f"{self.way}: {self.traps} traps hold {self.formula:.0%} of {self.samples} samples alone, and "
            f"{self.expected:.0%} are expected after peeling.{shown}{seen}"
        )


@dataclass(frozen=True)
class LyingServer:
    """The samples that a malicious server would take, by the ways that are known here.

    Args:
        lies: The ways.
    """

    lies: tuple[Lie, ...]

    @property
    def sentence(self) -> str:
        """The line of an audit."""
        open_ways = [lie for lie in self.lies if not lie.reason]
        if not open_ways:
            known = all(lie.tried for lie in self.lies)
            told = "not by the attacks known here. This does not rule out others" if known else "this was not tried"
            return f"If the server lies: {told}."
        parts = [f"up to {lie.most} of {lie.samples} samples {lie.words}" for lie in open_ways]
        if open_ways[0].way != next(iter(WAYS)):
            parts.insert(
                0, f"with weights alone, {'not by the attacks known here' if self.lies[0].tried else 'not tried'}"
            )
        return f"If the server lies: {', and '.join(parts)}. Such a server is malicious."

    @property
    def document(self) -> dict[str, Any]:
        """The result as plain values."""
        return {"sentence": self.sentence, "server": "malicious", "ways": [asdict(lie) for lie in self.lies]}

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> LyingServer:
        """Return the result that a document holds.

        Args:
            document: The result as plain values.
        """
        lies = []
        for way in document["ways"]:
            pairs = {name: tuple(way[name]) if way[name] is not None else None for name in ("loss", "accuracy")}
            lies.append(Lie(**{**way, **pairs}))
        return cls(tuple(lies))


def stated(plan: AuditPlan, cache: Cache) -> tuple[LyingServer | None, bool]:
    """Return what a malicious server would take, and whether Ctrl-C ended the replay.

    The result comes from the cache, or from a replay within a part of the budget. There is none if the user chose the
    attacks.

    Args:
        plan: The plan of the audit.
        cache: The cache of the audit.
    """
    if not plan.portfolio:
        return None, False
    definition: dict[str, Any] = {
        "malicious server": {title: list(map(repr, chain)) for title, chain in plan.chains.items()},
        "scenario": plan.scenario.document,
        "content": plan.scenario.fingerprint,
        "clients": plan.clients,
    }
    entry = cache.get(definition)
    if entry is not None:
        return LyingServer.read(entry.document), False
    seconds = SECONDS if plan.budget is None else min(SECONDS, max(LEAST_SECONDS, LARGEST_SHARE * plan.budget))
    try:
        with stopping(sentence=""):
            result = lying_server(plan, seconds)
    except KeyboardInterrupt:
        return None, True
    cache.put(definition, result.document)
    return result, False


def lying_server(plan: AuditPlan, seconds: float = SECONDS) -> LyingServer:
    """Forecast what a malicious server would take from the first client of an audit, and replay it.

    Args:
        plan: The plan of the audit.
        seconds: The seconds after which no further replay starts.
    """
    scenario, ends = plan.scenario, time.monotonic() + seconds
    message, truth = scenario.observe(0)
    public = _public(plan)
    return LyingServer(tuple(_lie(way, plan, message, truth, public, ends) for way in WAYS))


def _public(plan: AuditPlan) -> Tensor | None:
    """Return samples that no client of the audit holds, or ``None`` if there are too few."""
    from leakgauge.federation.defence import clients_in_a_sum

    scenario = plan.scenario
    together = max(map(clients_in_a_sum, plan.chains.values()), default=1)
    held = plan.clients * together * scenario.samples
    count = min(PUBLIC, (len(scenario.dataset) - held) // 2)
    return scenario.share(0, count, first=held).inputs if count >= 64 else None


def _lie(way: str, plan: AuditPlan, message: Observation, truth: Truth, public: Tensor | None, ends: float) -> Lie:
    samples = message.training.samples or len(truth)
    if not mixes_linearly(message):
        return Lie(way, "the client uses Adam, which changes the gradients of a trap one by one", samples=samples)
    if time.monotonic() > ends:
        return Lie(way, "there was no time left", tried=False, samples=samples)
    if sum(value.numel() for value in message.model.parameters()) > MOST_WEIGHTS:
        return Lie(way, "the model is too large for a replay within an audit", tried=False, samples=samples)
    if math.prod(message.data.shape) > LARGEST_SAMPLE:
        return Lie(way, "the samples are too large for a replay within an audit", tried=False, samples=samples)
    try:
        model, planted = _planted(way, plan.scenario, message.training, message, public)
    except DoesNotFit as reason:
        return Lie(way, str(reason), samples=samples)
    except Exception as problem:  # a user's model may raise anything, and the audit must go on
        return Lie(way, f"it failed ({type(problem).__name__})", tried=False, samples=samples)
    lie = Lie(
        way,
        traps=planted.traps,
        samples=samples,
        formula=planted.formula,
        expected=planted.expected,
        returned={},
    )
    for title, chain in plan.chains.items():
        if time.monotonic() > ends:
            break
        found = _replayed(way, plan.scenario, chain, model, message, public)
        if found is not None:
            lie = replace(lie, returned={**(lie.returned or {}), title: found})
    losses = [_loss(one, weights, message, truth) for one, weights in ((model, planted.weights), (None, message.sent))]
    shown = (losses[0], losses[1]) if all(map(math.isfinite, losses)) else None
    return replace(lie, loss=shown, accuracy=_accuracies(plan.scenario, model, message, truth))


def _planted(
    way: str, scenario: Scenario, training: LocalTraining, message: Observation, public: Tensor | None
) -> tuple[nn.Module, Trapped]:
    """Return a model with planted weights, and what the server expects of them."""
    model = scenario.network(0)
    if way == "an added block":
        units = max(FEWEST_UNITS, min(UNITS, MOST_OF_BLOCK // math.prod(message.data.shape)))
        model = with_added_block(model, message.data.shape, units=units)
    planted = plant(model, message.data, training, public=public, seed=scenario.seed)
    return planted.load_into(model), planted


def _replayed(
    way: str,
    scenario: Scenario,
    chain: Sequence[Defence],
    model: nn.Module,
    message: Observation,
    public: Tensor | None,
) -> int | None:
    """Return how many samples a replay returns, or ``None`` if the client cannot be simulated with this defence."""
    try:
        seen, truth = scenario.observe(0, chain, model=model)
        if seen.training != message.training:  # such as the sum of several clients
            model, _ = _planted(way, scenario, seen.training, message, public)
            seen, truth = scenario.observe(0, chain, model=model)
        result = trap_read_off()(replace(seen, steered=WAYS[way]), seed=scenario.seed, progress=False)
    except Exception:  # a user's model or defence may raise anything
        return None
    return returned(result.samples, truth)


def _loss(model: nn.Module | None, weights: Params, message: Observation, truth: Truth) -> float:
    """Return the client's mean loss of some weights, or NaN if it cannot be computed."""
    seen = message
    if model is not None:
        seen = replace(
            message, model=model, sent=weights, returned=None, gradient=weights, buffers=None, returned_buffers=None
        )
    else:
        seen = replace(message, sent=weights)
    return _or_nan(lambda: float(GlobalModel()([seen], progress=False).losses(truth.inputs, truth.targets).mean()))


def _accuracies(scenario: Scenario, model: nn.Module, message: Observation, truth: Truth) -> tuple[float, float] | None:
    """Return the accuracies of the planted and of the honest weights on the client's samples of classes."""
    if message.data.classes is None:
        return None
    own = scenario.share(0)

    def accuracy(one: nn.Module, weights: Params) -> float:
        return _or_nan(lambda: evaluate(one, own, weights, buffers_of(one)))

    planted = {name: value.detach() for name, value in model.named_parameters()}
    values = accuracy(model, planted), accuracy(message.model, message.sent)
    return values if all(map(math.isfinite, values)) else None


def _or_nan(compute: Callable[[], float]) -> float:
    try:
        with torch.no_grad():
            return compute()
    except LeakgaugeError:
        return math.nan
