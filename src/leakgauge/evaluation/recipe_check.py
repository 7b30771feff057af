r"""A check whether the recipe in an observation explains the client's message.

An attack that simulates another training than the client's fails, and this failure shows nothing. With the client's own
samples, no attack is needed to notice it. The training is repeated with the recipe on these samples, and compared with
the update :math:`u` that the client sent:

.. math:: r = \frac{\|\hat u - u\|}{\|u\|}.

The residual :math:`r` is 0 up to rounding if the recipe, the normalisation and the samples are right. Two things may be
unknown even then, which are the order of the samples and the masks of dropout layers. The training is therefore
repeated with several orders. How much these replays differ from each other shows how large :math:`r` may be.

A replay that points along the update, but is longer or shorter, shows a wrong learning rate. This is noticed even if
the order of the samples matters much, because an unknown order changes all directions alike.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from leakgauge.attacks.inversion.smoothness import forward_pass
from leakgauge.core.local_training import LocalTraining
from leakgauge.core.observation import Observation
from leakgauge.core.progress import Report, silent
from leakgauge.core.truth import Truth
from leakgauge.evaluation.recipe_causes import Change, changes, kept_batches
from leakgauge.evaluation.recipe_replays import SPREAD, Case, Comparison, Replays
from leakgauge.evaluation.recipe_traces import Trace, trace_of_defence

#: The residual that is allowed beside what is unknown, for other devices and versions of PyTorch.
ROUNDING = 0.01
#: The number of replays with different orders, and of those for each tried change of the recipe.
REPLAYS, REPLAYS_OF_CHANGES = 12, 2
#: The number of changes that are compared with as many replays as the recipe itself, and the largest ratio of the
#: ranks of two changes that explain as much.
FINALISTS, TIED = 5, 1.5
#: Beyond this limit of the residual, a residual below the limit says nothing.
TELLING = 1.0
#: A change of the recipe is kept if its rank is at most this share of the rank before. All changes together are
#: reported if their rank is at most the second share of the first rank.
BETTER, MUCH_BETTER = 0.8, 0.3
#: The largest number of changes that are kept, and of replays.
MOST_CHANGES, MOST_REPLAYS = 3, 500
#: The largest number of multiplications in all replays, some minutes of one core. At least a few replays are made.
MOST_WORK, FEWEST_REPLAYS = 3_000_000_000_000, 6
#: The settings that are searched for first if they are unknown.
SEARCHED = ("lr", "optimiser", "momentum", "weight_decay", "epochs", "batch_size", "schedule", "proximal", "clip_norm")
#: The largest number of numbers in the replays that are held at a time, which take 8 bytes each.
MOST_NUMBERS = 150_000_000
#: The values of settings that are unknown, before they are searched for.
ASSUMED: dict[str, Any] = {
    "lr": 0.01, "epochs": 1, "batch_size": 32, "momentum": 0.0, "weight_decay": 0.0, "optimiser": "sgd",
    "nesterov": False, "dampening": 0.0, "betas": (0.9, 0.999), "eps": 1e-8, "schedule": "constant", "clip_norm": 0.0,
    "proximal": 0.0, "label_smoothing": 0.0, "accumulation": 1,
}  # fmt: skip


@dataclass(frozen=True)
class RecipeCheck:
    """Whether a recipe explains a message.

    Args:
        residual: The distance of the replay from the update, as a share of the length of the update.
        limit: The largest residual that rounding, an unknown order and unknown masks explain.
        length: The length of the update along the replay, as a multiple of the replay's length.
        unknown: The settings of the recipe that are unknown, and for which usual values were assumed.
        causes: Changes of the recipe that explain the message better, in words, the most important first.
        residual_of_causes: The residual with these changes.
        trace: What the update shows of a defence that changed it, in words.
        not_checked: The reason why the message cannot be checked. The text is empty if it was checked.
        explained: Whether the recipe explains the message. This is ``None`` if the message was not checked.
    """

    residual: float = math.nan
    limit: float = math.nan
    length: float = math.nan
    unknown: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    residual_of_causes: float = math.nan
    trace: str = ""
    not_checked: str = ""
    explained: bool | None = None

    @property
    def sentence(self) -> str:
        """The result as a sentence."""
        if self.explained is None:
            return f"The recipe was not checked: {self.not_checked}."
        distance = f"relative distance {self.residual:.2g}, at most {self.limit:.2g} expected"
        if self.explained and self.causes:
            return (
                f"The recipe explains this update with {' and '.join(self.causes)}, which it does not hold (relative "
                f"distance {self.residual_of_causes:.2g})."
            )
        if self.explained and self.trace:
            return f"The recipe explains this update, apart from {self.trace} ({distance})."
        if self.explained:
            return f"Training again with the recipe on the client's samples gives this update ({distance})."
        words = f"The recipe does not explain this update ({distance})."
        if self.causes:
            assumed = " and ".join(self.causes)
            left = f" (then {self.residual_of_causes:.2g})" if math.isfinite(self.residual_of_causes) else ""
            return f"{words} The likeliest cause is {assumed}{left}."
        if self.trace:
            return f"{words} The update shows {self.trace}."
        return (
            f"{words} None of the usual causes explains it. Check that the samples are this client's, as the client "
            "trained on them in this round, and that the optimiser starts each round anew."
        )


def check_recipe(
    observation: Observation,
    truth: Truth,
    others: Mapping[str, Truth] | None = None,
    *,
    most: int | None = None,
    report: Report = silent,
) -> RecipeCheck:
    """Check whether the recipe in an observation explains the client's message, and search for the cause if not.

    Args:
        observation: The message of the client.
        truth: The client's samples. If they have an order, it is the order in which the client trained.
        others: The samples of other clients by name, one of which may have sent this message.
        most: The largest number of replays of the client's training. By default, as many as take some minutes.
        report: The function that is called after each replay.
    """
    reason = _why_not(observation, truth)
    if reason:
        return RecipeCheck(not_checked=reason)
    training, unknown = _completed(observation.training, len(truth), gradient=observation.kind == "gradient")
    case = Case(training, observation.data, truth.trained or truth)
    affordable = _affordable(observation, training)
    replays = Replays(observation, affordable if most is None else min(most, affordable), report)
    if observation.kind == "weights" and not replays.has_order(case):
        told = _other_batches(replays, case, unknown)
        if told is not None:
            return told
    made = replays(case, max(2, min(REPLAYS, replays.most // 3, MOST_NUMBERS // len(replays.update))))
    if made is None:
        return RecipeCheck(not_checked="training with this recipe fails or diverges on these samples", unknown=unknown)
    found = Comparison(replays.update, made, max(ROUNDING, _rounding(observation)))
    result = RecipeCheck(found.residual, found.limit, found.length, unknown, explained=found.explains)
    parts = {name: value.numel() for name, value in observation.difference().items()}
    trace = Trace() if found.explains else trace_of_defence(replays.update, found.mean, parts, found.limit)
    if trace.explains:
        return replace(result, trace=trace.words, explained=True)
    search = _Search(replays, others or {}, unknown)
    if found.explains and not (replays.is_random(case) and search.finds_better(case, found)):
        if found.limit <= TELLING:
            return result
        reason = f"the order of the samples and masks of dropout change the update by {found.limit / SPREAD:.2g} times"
        return replace(
            result, explained=None, not_checked=f"{reason} its length, so no recipe can be told from another"
        )
    result = replace(result, explained=False)
    best, causes = search(case, found)
    scaled = Comparison(found.update, found.length * made, found.rounding)
    if trace.words and scaled.rank <= TIED * best.rank:
        return replace(result, trace=trace.words)
    if causes and (best.explains or best.rank <= MUCH_BETTER * found.rank):
        told = replace(result, causes=tuple(causes.values()), residual_of_causes=best.residual)
        return replace(told, explained=True) if best.explains and causes.keys() <= set(unknown) else told
    count = observation.training.samples
    if count not in (None, len(truth)):
        return replace(result, causes=(f"other samples, since the client trained on {count} and not {len(truth)}",))
    return result


def _other_batches(replays: Replays, case: Case, unknown: tuple[str, ...]) -> RecipeCheck | None:
    """Return the check if the client trained on other batches than the recipe has, and these explain the update.

    Otherwise, the order of the samples would count as unknown, although it is known.
    """
    rounding = max(ROUNDING, _rounding(replays.observation))
    for change in kept_batches(case.training, case.truth):
        changed = replace(case, **change.changed)
        made, before = replays(changed, 2), replays(case, 2)
        if made is None or before is None:
            continue
        found, first = Comparison(replays.update, made, rounding), Comparison(replays.update, before, rounding)
        if found.explains:
            parts = ("batch_size", "epochs", "local_steps")
            wrong = {name for name in parts if getattr(changed.training, name) != getattr(case.training, name)}
            was_unknown = wrong - {"local_steps"} <= set(unknown) and bool(wrong & set(unknown))
            facts = (first.residual, found.limit, first.length, unknown, (change.words,), found.residual)
            return RecipeCheck(*facts, explained=was_unknown)
    return None


#: A comparison, the client that it is of, and the changed parts of its recipe with the changes in words.
_Changed = tuple[Comparison, Case, dict[str, str]]


@dataclass(frozen=True, eq=False)
class _Search:
    """The search for changes of a recipe that explain an update.

    Args:
        replays: The replays of the message.
        others: The samples of other clients, by name.
        unknown: The settings that are unknown, which are changed first.
    """

    replays: Replays
    others: Mapping[str, Truth]
    unknown: Sequence[str]

    def _changes(self, case: Case, length: float, only: Collection[str] = ()) -> Iterator[Change]:
        found = changes(case.training, case.data, case.truth, length, self.replays.observation, self.others)
        return (change for change in found if not only or change.part in only)

    def finds_better(self, case: Case, found: Comparison) -> bool:
        """Return whether a usual change of the recipe explains the update clearly better."""
        for change in self._changes(case, found.length):
            made = None if self.replays.exhausted else self.replays(replace(case, **change.changed), 1)
            if made is not None and found.prefers(made[0]):
                return True
        return False

    def __call__(self, case: Case, found: Comparison) -> tuple[Comparison, dict[str, str]]:
        """Return the best comparison, and the parts of the recipe that were changed for it, with the changes in words.

        Unknown settings are changed first. If they do not explain the update, any part is changed, once from the recipe
        as it is and once together with them.
        """
        start = (found, case, dict[str, str]())
        open_parts = [part for part in self.unknown if part in SEARCHED]
        if not open_parts:
            return _without_case(self._changed(start))
        unknown = self._changed(start, open_parts)
        if unknown[0].explains and unknown[2]:
            return _without_case(unknown)
        known = self._changed(start)
        if known[0].explains:
            return _without_case(known)
        both = self._changed(unknown) if unknown[2] else known
        return _without_case(min((both, known), key=lambda one: one[0].rank))

    def _changed(self, start: _Changed, only: Sequence[str] = ()) -> _Changed:
        """Change one thing at a time, and keep the change that explains the most, as long as one explains more.

        Args:
            start: The comparison, the client and its changes so far.
            only: The parts that may be changed, also more than once. By default, any part may be changed once.
        """
        found, case, causes = start[0], start[1], dict(start[2])
        for _ in range(MOST_CHANGES + len(only)):
            if (found.explains and causes and not only) or self.replays.exhausted:
                break
            best = self._best(case, found, only, set() if only else set(causes))
            if best is None or best[0].rank > BETTER * found.rank:
                break
            change, (found, case) = best[1], (best[0], replace(case, **best[1].changed))
            causes[change.part] = change.words
        return found, case, causes

    def _best(
        self, case: Case, found: Comparison, only: Sequence[str], done: set[str]
    ) -> tuple[Comparison, Change] | None:
        """Return the change with the best rank. The best few are compared with more replays.

        Replays are as large as the model, so only those of one change are held at a time.
        """
        tried: list[tuple[float, Change]] = []
        for change in self._changes(case, found.length, only):
            rank = None if change.part in done else self._rank(case, change, found, REPLAYS_OF_CHANGES)
            if rank is not None:
                tried.append((rank, change))
        if not tried:
            return None
        orders = len(found.replays)
        if orders > 1:
            last = sorted(rank for rank, _ in tried)[:FINALISTS][-1]
            finalists = [change for rank, change in tried if rank <= last]
            ranked = [(self._rank(case, change, found, orders), change) for change in finalists]
            tried = [(rank, change) for rank, change in ranked if rank is not None] or tried
        least = min(rank for rank, _ in tried) * (TIED if orders > 1 else 1.0)
        chosen = next(change for rank, change in tried if rank <= least)  # the likeliest of those that tie
        made = self.replays(replace(case, **chosen.changed), orders)
        return None if made is None else (Comparison(found.update, made, found.rounding), chosen)

    def _rank(self, case: Case, change: Change, found: Comparison, orders: int) -> float | None:
        """Return the rank of a changed case, or ``None`` if it cannot be trained or no replays are left."""
        if self.replays.exhausted:
            return None
        made = self.replays(replace(case, **change.changed), orders)
        return None if made is None else Comparison(found.update, made, found.rounding).rank


def _without_case(changed: _Changed) -> tuple[Comparison, dict[str, str]]:
    return changed[0], changed[2]


def _affordable(observation: Observation, training: LocalTraining) -> int:
    """Return the number of replays that a check may make."""
    epochs = int(training.need("epochs")) if observation.kind == "weights" else 1
    work = 3 * forward_pass(observation).operations * int(training.need("samples")) * epochs
    return max(FEWEST_REPLAYS, min(MOST_REPLAYS, MOST_WORK // max(1, work)))


def _why_not(observation: Observation, truth: Truth) -> str:
    """Return the reason why a message cannot be checked, or the empty text."""
    if observation.client.startswith("sum of "):
        return "the message is a sum of several clients"
    if observation.defences:
        return f"the client changes its message with {', '.join(observation.defences)}"
    if not any(bool(value.any()) for value in observation.difference().values()):
        return "the update is zero"
    if observation.data.shape != truth.data.shape:
        return "the samples have another shape"
    return ""


def _completed(training: LocalTraining, samples: int, *, gradient: bool) -> tuple[LocalTraining, tuple[str, ...]]:
    """Return a recipe in which unknown settings have usual values, and the names of these settings."""
    relevant = set(training.listed(one_gradient=gradient)) - {"samples", "local_steps"}
    unknown = [name for name in ASSUMED if getattr(training, name) is None]
    values = {name: ASSUMED[name] for name in unknown}
    if "batch_size" in values:
        values["batch_size"] = min(int(ASSUMED["batch_size"]), samples)
    whole = replace(training, **values, samples=samples)
    if whole.batch_size is not None and whole.batch_size > samples:
        whole = replace(whole, batch_size=samples)
    return whole, tuple(name for name in unknown if name in relevant)


def _rounding(observation: Observation) -> float:
    """Return the relative error of the update that comes from the rounding of the returned weights."""
    if observation.returned is None:
        return 0.0
    steps = {name: torch.finfo(value.dtype).eps / 2 for name, value in observation.returned.items()}
    rounding = sum(float((steps[name] * value).square().sum()) for name, value in observation.returned.items())
    update = sum(float(value.square().sum()) for value in observation.difference().values())
    return 4 * math.sqrt(rounding / update) if update else 0.0
