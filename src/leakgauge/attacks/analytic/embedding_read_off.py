r"""Embedding read-off, which reads token ids and categories from the gradient of an embedding.

An embedding is a table with one row for each token. Only the rows of tokens that the client has get a gradient, so the
rows that are not zero name the client's tokens exactly, after any number of local steps and for any optimiser. Fowl et
al. ("Decepticons", ICLR 2023) and Balunovic et al. ("LAMP", NeurIPS 2022) begin with this observation. Which sample a
token belongs to, and where it stands, is solved for in one of these ways:

- If the model takes tokens in any order, as the mean of embeddings, the row of token :math:`v` is
  :math:`\sum_i c_{iv}\, g_i` with whole numbers :math:`c_{iv}` (:mod:`.bags`). The order is not in the message.
- If the client has one sample, the first dense layer that gets one vector for each sample holds a copy of this vector.
  The arrangement of the tokens that gives this vector is searched for (:mod:`.token_search`).
- If the network ends in two dense layers, the same vectors are solved for in whole batches (:mod:`.peeling`).

Otherwise, the tokens are dealt to the samples at random. The attacker recognises an exact result, because its message
is the observed message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from leakgauge.attacks.analytic.bags import Bags, whole_bags
from leakgauge.attacks.analytic.dense import DoesNotFit
from leakgauge.attacks.analytic.features import extractor
from leakgauge.attacks.analytic.lookups import Lookups, Slot, changes_of, lookups_of, used_rows
from leakgauge.attacks.analytic.model_copy import copy_of_model
from leakgauge.attacks.analytic.peeling import Peeling, SearchSettings, chain_of, factor_finders, span_finders
from leakgauge.attacks.analytic.rebuilt_batch import agreement, labels_from_parts
from leakgauge.attacks.analytic.replay import replay
from leakgauge.attacks.analytic.token_search import SOLVED, Target, TokenSearch
from leakgauge.attacks.base import Attack, Reconstruction
from leakgauge.attacks.inversion.labels import LastLayer
from leakgauge.attacks.inversion.stopping import Kind, Outcome
from leakgauge.attacks.spec import AttackSpec, Cost, Fit
from leakgauge.core.checks import whole_number
from leakgauge.core.errors import LeakgaugeError
from leakgauge.core.observation import Observation
from leakgauge.core.params import inside
from leakgauge.core.progress import Report
from leakgauge.core.seeding import generator

#: The number of rounding errors within which vectors agree.
ROUNDINGS = 32.0
#: The settings of the search for the features of a batch.
FEATURES = SearchSettings(48, 60, 6, 0.02)


@dataclass(frozen=True, eq=False)
class _Solution:
    """Rebuilt samples, in units of the data.

    Args:
        samples: The samples, flattened.
        labels: The labels, or ``None``.
        words: The words about what is known.
        exact: Whether every sample is proven.
        interrupted: Whether Ctrl-C ended the search.
    """

    samples: Tensor
    labels: Tensor | None
    words: str
    exact: bool = False
    interrupted: bool = False


@dataclass(frozen=True)
class EmbeddingReadOff(Attack):
    """The attack that reads token ids from the gradient of an embedding. See :func:`embedding_read_off`.

    Args:
        restarts: The largest number of starts of the search for the arrangement of tokens.
    """

    uses_defences: ClassVar[bool] = False
    takes_lookups: ClassVar[bool] = True

    restarts: int = 30

    def __post_init__(self) -> None:
        whole_number("restarts", self.restarts)

    def run(self, observation: Observation, seed: int, report: Report) -> Reconstruction:
        """Rebuild the samples from the rows of the embeddings that are not zero.

        Args:
            observation: The client's message (gradient or weights), as the server sees it.
            seed: The seed of the search.
            report: The progress function.
        """
        fit = fits(observation)
        if not fit.applies:
            raise DoesNotFit(f"embedding_read_off() does not apply: {fit.reason}")
        client = _Client(observation, lookups_of(observation), generator(seed, "tokens"), self.restarts)
        solution = client.solve(report)
        data, like = observation.data, next(iter(observation.sent.values()))
        samples = solution.samples.reshape(-1, *data.shape).to(like)
        words = f"the client's tokens are read off exactly ({client.counted()}); {solution.words}"
        kind: Kind = "interrupted" if solution.interrupted else "converged" if solution.exact else "finished"
        return Reconstruction(samples, solution.labels, Outcome(kind, 0, words))


@dataclass(eq=False)
class _Client:
    """The tokens of one client, and the ways to arrange them."""

    observation: Observation
    lookups: Lookups
    draw: torch.Generator
    restarts: int
    used: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for table in dict.fromkeys(slot.table for slot in self.lookups.slots):
            self.used[table] = used_rows(self.observation, table)

    @property
    def count(self) -> int:
        """The number of samples."""
        return int(self.observation.training.need("samples"))

    def counted(self) -> str:
        """Return the number of used rows of each table, in words."""
        return ", ".join(
            f"{len(rows)} of {len(self.observation.sent[table])} rows of {table}" for table, rows in self.used.items()
        )

    def solve(self, report: Report) -> _Solution:
        """Return the samples in the first way that applies."""
        for way in (self._bags, self._one_sample, self._batch):
            try:
                solution = way(report)
            except DoesNotFit:
                continue
            if solution is not None:
                return solution
        return self._dealt()

    def values(self, slot: Slot, rows: Tensor) -> Tensor:
        """Return the values of samples that look up rows of a table.

        Args:
            slot: The place of the value in a sample.
            rows: The indices of the rows.
        """
        return (rows - slot.zero).double() / slot.step

    def _padding(self, slot: Slot) -> int:
        return slot.zero if slot.padding is None else slot.padding

    def _blank(self) -> Tensor:
        """Return a sample of values that nobody knows, which are zeros in the model's units."""
        data = self.observation.data
        zeros = torch.zeros(1, *data.shape, dtype=torch.double, device=self.observation.device)
        return data.denormalise(zeros).flatten()

    def _arranged(self, ids: list[Tensor]) -> Tensor:
        """Return samples with given tokens, in any order. Missing tokens are padding."""
        samples = self._blank().repeat(len(ids), 1)
        for row, tokens in enumerate(ids):
            for number, slot in enumerate(self.lookups.slots):
                known = tokens[number : number + 1] if number < len(tokens) else torch.tensor([self._padding(slot)])
                samples[row, slot.value] = self.values(slot, known.to(samples.device))[0]
        return samples

    def _bags(self, report: Report) -> _Solution | None:
        """Return the bag of tokens of each sample, if the model takes tokens of one table in any order."""
        if not self.lookups.any_order or len(self.used) != 1 or len(self.lookups.slots) < 2:
            return None
        (table, rows), places = next(iter(self.used.items())), len(self.lookups.slots)
        vectors = changes_of(self.observation, table)[rows]
        bags = whole_bags(vectors, self.count, _tolerance(self.observation, table, vectors))
        if not len(bags.parts):
            return None
        counts = bags.amounts.long()
        bags_of_ids = [rows.repeat_interleave(one)[:places] for one in counts]
        whole = bool(bags.explained.all()) and len(counts) == self.count and int(counts.sum(1).max()) <= places
        if not whole:
            bags_of_ids = _completed(bags_of_ids, rows, self.count, places)
        samples = self._arranged(bags_of_ids)
        labels = self._labels()
        if len(counts) == self.count and all(map(len, bags_of_ids)):
            first = [ids[0] for ids in bags_of_ids]
            labels = labels_from_parts(self.observation, samples, table, first, bags.parts)
        return _Solution(samples, labels, self._words_of(bags, samples, labels, whole))

    def _words_of(self, bags: Bags, samples: Tensor, labels: Tensor | None, whole: bool) -> str:
        order = "their order has no effect on the message"
        if not whole:
            share = float(bags.explained.double().mean())
            words = f"{share:.0%} of them are assigned to {len(bags.parts)} of {self.count} samples"
            return f"{words}, the others fill other places, and {order}"
        proof = agreement(self.observation, samples, labels)
        checked = f", and a replay gives the same message (relative distance {proof:.1g})" if proof < SOLVED else ""
        return f"all of them are assigned to the {self.count} samples{checked}, and {order}"

    def _one_sample(self, report: Report) -> _Solution | None:
        """Return the only sample, from the features that a dense layer's gradient holds."""
        if self.count != 1:
            return None
        path, target = _features_of_one(self.observation, self.lookups)
        sample, distance, interrupted = self._searched(path, [target], report)
        data = self.observation.data
        proof = replay(self.observation, data.normalise(sample.reshape(1, *data.shape)))
        exact = bool(proof.residual <= proof.limit) and not self.lookups.any_order
        words = f"the sample's features differ by {distance:.1g}, and {proof}"
        return _Solution(sample, proof.label, words, exact, interrupted)

    def _batch(self, report: Report) -> _Solution | None:
        """Return the samples of a batch, from the features that two dense layers determine."""
        chain = chain_of(self.observation, on_samples=False)
        chain.check_only_path()
        finders = factor_finders(chain, FEATURES, self.draw) + span_finders(chain, FEATURES, self.draw)
        peeling = Peeling(FEATURES, chain, self.observation, finders, chain.layer(chain.first).out_features // 2)
        interrupted = peeling.run(report)
        features, labels = peeling.result()
        if not len(features):
            return None
        samples, distance, stopped = self._searched(chain.first, [Target(one) for one in features], report)
        proof = agreement(self.observation, samples, labels)
        words = f"features: {peeling.outcome(False)}. The samples' features differ by up to {distance:.1g}"
        exact = len(samples) == self.count and proof < SOLVED and distance < SOLVED
        return _Solution(samples, labels, words, exact, interrupted or stopped)

    def _searched(self, path: str, targets: list[Target], report: Report) -> tuple[Tensor, float, bool]:
        """Return the sample with each target's features, the largest distance, and whether Ctrl-C ended the search."""
        data = self.observation.data
        search = TokenSearch(
            extractor(self.observation, path, torch.double),
            data.normalise(self._blank().reshape(1, *data.shape))[0],
            torch.tensor([slot.value for slot in self.lookups.slots], device=self.observation.device),
            [self._choices(slot) for slot in self.lookups.slots],
            [slot.table for slot in self.lookups.slots],
        )
        samples, worst, interrupted = [], 0.0, False
        for target in targets:
            found = search.run(target, 0 if interrupted else self.restarts, self.draw, report)
            samples.append(data.denormalise(search.completed(found.values, target)[None]).flatten())
            worst, interrupted = max(worst, found.distance), interrupted or found.interrupted
        return torch.stack(samples), worst, interrupted

    def _choices(self, slot: Slot) -> Tensor:
        """Return the possible inputs of the model at a place."""
        rows = self.used[slot.table]
        if slot.padding is not None or not len(rows):
            rows = torch.cat([rows, rows.new_tensor([self._padding(slot)])]).unique()
        return self.values(slot, rows)

    def _dealt(self) -> _Solution:
        """Return samples with the client's tokens in random places."""
        samples = self._blank().repeat(self.count, 1)
        for table, rows in self.used.items():
            slots = [slot for slot in self.lookups.slots if slot.table == table]
            repeated = rows.repeat(-(-self.count * len(slots) // max(1, len(rows))))[: self.count * len(slots)]
            dealt = repeated[torch.randperm(len(repeated), generator=self.draw)].reshape(self.count, -1)
            for place, slot in enumerate(slots[: dealt.shape[1]]):
                samples[:, slot.value] = self.values(slot, dealt[:, place])
        words = "which sample has which of them is not solved, so they are dealt at random"
        return _Solution(samples, self._labels(), words)

    def _labels(self) -> Tensor | None:
        """Return the labels in any order, or ``None`` if they cannot be inferred."""
        try:
            labels = LastLayer()(self.observation, self.draw)
        except (LeakgaugeError, RuntimeError, IndexError):  # dummy inputs may be no tokens
            return None
        return labels if len(labels) == self.count else None


def _completed(bags: list[Tensor], used: Tensor, samples: int, places: int) -> list[Tensor]:
    """Return full bags in which the client's other tokens fill free places, and replace further copies of tokens.

    Args:
        bags: The known bags.
        used: All tokens of the client.
        samples: The number of samples.
        places: The number of tokens of a sample.
    """
    full = [bag.tolist() for bag in bags] + [[] for _ in range(samples - len(bags))]
    placed = {token for bag in full for token in bag}
    left = [token for token in used.tolist() if token not in placed]
    for bag in full:
        copies = [index for index in range(len(bag)) if bag[index] in bag[:index]]
        while left and len(bag) < places:
            bag.append(left.pop())
        while left and copies:
            bag[copies.pop()] = left.pop()
        bag.extend(used.tolist()[: places - len(bag)])
    return [torch.tensor(bag, dtype=used.dtype, device=used.device) for bag in full]


def _tolerance(observation: Observation, table: str, vectors: Tensor) -> float:
    """Return the relative rounding error of the vectors of tokens."""
    eps = torch.finfo(observation.sent[table].dtype).eps
    if observation.kind == "gradient":
        return ROUNDINGS * eps
    rounding = 2 * eps * observation.sent[table].double().square().sum(1).mean().sqrt()
    return ROUNDINGS * eps + float(rounding / vectors.norm(dim=1).amax().clamp_min(1e-300))


def _features_of_one(observation: Observation, lookups: Lookups) -> tuple[str, Target]:
    """Return the first trained dense layer that gets one vector for each sample, and this vector of the only sample."""
    model = copy_of_model(observation, torch.double)
    trained = {name for name, value in observation.model.named_parameters() if value.requires_grad}
    seen: list[str] = []

    def record(path: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda module, inputs: seen.append(path) if inputs[0].shape[:-1] == (1,) else None

    for path, module in model.named_modules():
        if isinstance(module, nn.Linear):
            module.register_forward_pre_hook(record(path))
    dummy = torch.zeros(1, *observation.data.shape, dtype=torch.double, device=observation.device)
    with torch.no_grad():
        model(lookups.valid(dummy))
    update = observation.difference()
    for path in seen:
        kernel, bias = update[inside(path, "weight")].double(), update.get(inside(path, "bias"))
        if inside(path, "weight") not in trained or not bool(kernel.any()):
            continue
        if bias is not None and bool(bias.any()):
            return path, Target(bias.double() @ kernel / bias.double().square().sum())
        direction = torch.linalg.svd(kernel, full_matrices=False)[2][0]
        return path, Target(direction, direction=True)
    raise DoesNotFit("no trained dense layer gets one vector for each sample")


def fits(observation: Observation) -> Fit:
    """Decide whether the attack applies. The model must look up values of the samples in trained embeddings.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
    """
    slots, samples = lookups_of(observation).slots, observation.training.samples
    if not slots:
        return Fit(False, "the model looks up no value of the samples in an embedding")
    trained = {name for name, value in observation.model.named_parameters() if value.requires_grad}
    if any(slot.table not in trained for slot in slots):
        return Fit(False, "the embedding is not trained, so its rows get no gradient")
    if samples is None:
        return Fit(False, "needs the number of samples, which is unknown")
    for table in dict.fromkeys(slot.table for slot in slots):
        rows, most = len(used_rows(observation, table)), samples * sum(slot.table == table for slot in slots)
        if rows > most:
            return Fit(
                False,
                f"{rows:,} rows of {table} have changed, and the samples look up at most {most:,}, so noise, weight "
                "decay or the output layer hides which rows they are",
            )
        if not rows:
            return Fit(False, f"no row of {table} has changed")
    return Fit(True, "the rows of the embedding that have changed name the client's tokens or categories exactly")


def embedding_read_off(*, restarts: int = 30) -> EmbeddingReadOff:
    """Read token ids and categories from the rows of an embedding's gradient that are not zero.

    The samples hold whole numbers that the model looks up in an embedding. The message is one gradient or the result of
    local training. The tokens of the client are always exact. The samples that they belong to, and their order, are
    solved for if the model adds up embeddings, if the client has one sample, or if the network ends in two dense
    layers.

    Args:
        restarts: The largest number of starts of the search for the arrangement of tokens.
    """
    return EmbeddingReadOff(restarts)


SPECS = (
    AttackSpec(
        name="embedding_read_off",
        factory=embedding_read_off,
        summary="Embedding read-off (ours; LAMP, Balunovic et al. 2022): changed rows of an embedding name the tokens.",
        fits=fits,
        cost=Cost.SECONDS,
        rank=0,
        audit={},
        exact=True,
        takes_lookups=True,
    ),
)
