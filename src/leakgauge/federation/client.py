"""One client's part of one round: private samples in, what the server sees (and the truth, apart) out."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase

from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.core.observation import LocalTraining, Mode, Observation
from leakgauge.core.params import Params, buffers_of, parameters_of, subtract
from leakgauge.core.seeding import generator, seeded
from leakgauge.core.truth import Truth
from leakgauge.data.dataset import Dataset
from leakgauge.federation.defence import Defence, Protection, Trained, check_defences, recipe_with, training_of
from leakgauge.federation.training import Batch, Trainer, draw_order, in_mode, local_sgd

GRANTS = ("labels", "label_counts", "label_batches")
HIDEABLE = ("lr", "epochs", "batch_size", "samples", "momentum", "weight_decay")


def fedsgd(
    model: nn.Module,
    data: Dataset,
    *,
    loss: str | None = None,
    mode: Mode = "train",
    share_statistics: bool = True,
    defences: Defence | Iterable[Defence] = (),
    granted: Iterable[str] = (),
    hidden: Iterable[str] = (),
    knows_defence: bool = False,
    client: str | None = None,
    round: int = 0,
    participations: int = 1,
    seed: int = 0,
) -> tuple[Observation, Truth]:
    """The client sends the gradient of its loss on all of ``data`` as one batch (FedSGD).

    ``defences`` are what the client does to protect its samples (:mod:`leakgauge.federation.defences`), in their order.
    ``granted`` gives the attacker the ``"labels"``, the ``"label_counts"`` or the ``"label_batches"`` (which labels
    are in which batch); ``knows_defence`` tells it the defences; ``hidden`` withholds parts of the recipe;
    ``share_statistics=False`` keeps batch-norm statistics from the server. ``participations`` is how often the client takes
    part in all, over which a defence with a budget spreads it.
    """
    granted, hidden = check_exposure(data, granted, hidden)
    training = recipe_for(data, loss=loss, mode=mode, epochs=1)
    chain = check_defences(defences, model, training.mode)
    if recipe_with(chain, training) != training:
        raise InvalidInput("larger batches and more epochs change local training, and FedSGD has none; use fedavg()")
    check_model(model, data, training.loss)
    protection = Protection(chain, seed, data.spec.classes)
    trainer = Trainer(model, training, protection=protection)
    state = trainer.start(parameters_of(model), None)
    order = (torch.arange(len(data)),)
    samples = prepared(data, state.weights)
    try:
        with seeded(seed, "dropout"), trainer.active():
            if (own := training_of(chain)) is not None:
                own.check(model, training)
                start = Trained((), state.weights, state.buffers)
                gradient, buffers = (
                    own.gradient(model, protection.on_batch(samples), training, start, participations, seed),
                    state.buffers,
                )
            else:
                gradient, buffers = trainer.gradient(state, samples, graph=False)
    except ValueError as problem:
        raise explained(problem) from problem
    gradient = protection.on_update(gradient)
    observation = observe(
        model, data, training, state.weights, gradient=gradient, returned=None, returned_buffers=buffers,
        share_statistics=share_statistics, order=order, defences=chain, granted=granted, hidden=hidden, knows_defence=knows_defence, client=client,
        round=round,
    )  # fmt: skip
    return observation, truth_of(data, order)


def fedavg(
    model: nn.Module,
    data: Dataset,
    *,
    lr: float,
    epochs: int = 1,
    batch_size: int | None = None,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    loss: str | None = None,
    mode: Mode = "train",
    share_statistics: bool = True,
    defences: Defence | Iterable[Defence] = (),
    granted: Iterable[str] = (),
    hidden: Iterable[str] = (),
    knows_defence: bool = False,
    client: str | None = None,
    round: int = 0,
    participations: int = 1,
    seed: int = 0,
) -> tuple[Observation, Truth]:
    """The client trains on ``data`` and sends its weights (FedAvg, McMahan et al. 2017, algorithm 1).

    Every epoch has a new random order, drawn from ``seed``; the last batch may be ragged; ``batch_size=None``
    is one full batch. See :func:`fedsgd` for ``defences``, ``granted``, ``hidden``, ``knows_defence``,
    ``share_statistics`` and ``participations``.
    """
    granted, hidden = check_exposure(data, granted, hidden)
    training = recipe_for(
        data,
        loss=loss,
        mode=mode,
        lr=lr,
        epochs=epochs,
        batch_size=batch_size,
        momentum=momentum,
        weight_decay=weight_decay,
    )
    chain = check_defences(defences, model, training.mode)
    training = recipe_with(chain, training)
    check_model(model, data, training.loss)
    check_training(chain, model, training, granted)
    sent = parameters_of(model)
    start = Trained((), sent, buffers_of(model))
    trained = train_client(
        model,
        prepared(data, sent),
        training,
        start,
        seed,
        chain,
        classes=data.spec.classes,
        participations=participations,
    )
    observation = observe(
        model, data, training, sent, gradient=None, returned=trained.weights, returned_buffers=trained.buffers,
        share_statistics=share_statistics, order=trained.order, defences=chain, granted=granted, hidden=hidden, knows_defence=knows_defence, client=client,
        round=round,
    )  # fmt: skip
    return observation, truth_of(data, trained.order)


def check_training(chain: Sequence[Defence], model: nn.Module, training: LocalTraining, granted: Sequence[str]) -> None:
    """Refuse a model or a grant that a defence which does the training itself cannot serve, before it starts."""
    own = training_of(chain)
    if own is None:
        return
    own.check(model, training)
    if "label_batches" in granted:
        raise InvalidInput(f"label_batches cannot be granted: {own!r} draws batches of no fixed size")


def train_client(
    model: nn.Module,
    samples: Batch,
    training: LocalTraining,
    start: Trained,
    seed: int,
    defences: Sequence[Defence] = (),
    *,
    classes: int | None = None,
    participations: int = 1,
) -> Trained:
    """Train one client on its :func:`prepared` samples from the weights and buffers of ``start``.

    ``participations`` is how often it takes part in all, by which a defence with a budget spreads it.
    """
    protection = Protection(defences, seed, classes)
    try:
        with seeded(seed, "dropout"):
            if (own := training_of(defences)) is not None:
                trained = own.train(model, samples, training, start, participations, seed, protection.on_batch)
            else:
                inputs, targets = samples
                order = order_of(training, seed)
                batches = ((inputs[rows], targets[rows]) for rows in order)
                weights, buffers = local_sgd(
                    model, start.weights, batches, training, buffers=start.buffers, protection=protection
                )
                trained = Trained(order, weights, buffers)
    except ValueError as problem:
        raise explained(problem) from problem
    return replace(trained, weights=protected(protection, start.weights, trained.weights))


def protected(protection: Protection, sent: Params, returned: Params) -> Params:
    """The weights that a client returns, after the defences on its update."""
    update = subtract(sent, returned)
    changed = protection.on_update(update)
    return returned if changed is update else subtract(sent, changed)


def order_of(training: LocalTraining, seed: int) -> tuple[Tensor, ...]:
    """The rows of each of a client's local steps."""
    samples, size, epochs = (int(training.need(name)) for name in ("samples", "batch_size", "epochs"))
    return draw_order(samples, size, epochs, generator(seed, "order"))


def observe(
    model: nn.Module,
    data: Dataset,
    training: LocalTraining,
    sent: Params,
    *,
    gradient: Params | None,
    returned: Params | None,
    returned_buffers: Params | None,
    buffers: Params | None = None,
    share_statistics: bool = True,
    order: Sequence[Tensor] = (),
    defences: Sequence[Defence] = (),
    granted: Iterable[str] = (),
    hidden: Iterable[str] = (),
    knows_defence: bool = False,
    client: str | None = None,
    round: int = 0,
    architecture: nn.Module | None = None,
) -> Observation:
    """Put together what the server sees, and leave out what it does not.

    ``architecture`` may be given to share one copy between many observations (:func:`architecture_of`).
    """
    granted, hidden = check_exposure(data, granted, hidden)
    counts = None
    if "label_counts" in granted:
        counts = torch.bincount(data.targets, minlength=data.spec.classes or 0)
    batches = None
    if "label_batches" in granted:
        batches = data.targets[torch.cat(tuple(order)).to(data.targets.device)].reshape(-1, len(data))
    if buffers is None:
        buffers = buffers_of(model)
    return Observation(
        model=architecture or architecture_of(model, share_statistics),
        data=data.spec,
        sent=sent,
        training=replace(training, **dict.fromkeys(hidden)),  # type: ignore[arg-type]
        gradient=gradient,
        returned=returned,
        buffers=buffers if share_statistics and buffers else None,
        returned_buffers=returned_buffers if share_statistics and returned_buffers else None,
        labels=data.targets.clone() if "labels" in granted else None,
        label_counts=counts,
        label_batches=batches,
        defences=tuple(map(repr, defences)) if knows_defence else None,
        client=client or data.name,
        round=round,
    )


def check_exposure(
    data: Dataset, granted: Iterable[str], hidden: Iterable[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of what is granted and hidden, refused before any work starts if there is no such thing."""
    grants, withheld = ((names,) if isinstance(names, str) else tuple(names) for names in (granted, hidden))
    for name in grants:
        if name not in GRANTS:
            raise UnknownName("thing to grant", name, GRANTS)
    for name in withheld:
        if name not in HIDEABLE:
            raise UnknownName("part of the recipe to hide", name, HIDEABLE)
    for name in ("label_counts", "label_batches"):
        if name in grants and data.spec.classes is None:
            raise InvalidInput(f"{name} cannot be granted: this data is a regression and has no classes")
    for name in ("epochs", "batch_size", "samples"):
        if "label_batches" in grants and name in withheld:
            raise InvalidInput(f"label_batches tell the {name}: grant the one, or hide the other")
    return grants, withheld


def architecture_of(model: nn.Module, share_statistics: bool) -> nn.Module:
    """A copy of the model for the attacker, without the client's statistics where those are withheld."""
    architecture = copy.deepcopy(model)
    if not share_statistics:
        for module in architecture.modules():
            if isinstance(module, _NormBase):
                module.reset_running_stats()
    return architecture


def truth_of(data: Dataset, order: tuple[Tensor, ...]) -> Truth:
    """The client's samples, with others of the same kind for the chance level."""
    others = data.others()
    return Truth(
        data.inputs,
        data.targets,
        data.spec,
        order,
        None if others is None else others.inputs,
        None if others is None else others.targets,
    )


def recipe_for(data: Dataset, *, loss: str | None, batch_size: int | None = None, **settings: object) -> LocalTraining:
    """The recipe of one client, with the loss that its data asks for unless another is named.

    ``batch_size=None``, or one that is larger than the data, is one full batch.
    """
    if not len(data):
        raise InvalidInput(f"client {data.name!r} has no samples to train on")
    chosen = loss or ("mse" if data.spec.classes is None else "cross_entropy")
    size = len(data) if batch_size is None else batch_size
    training = LocalTraining(samples=len(data), loss=chosen, batch_size=size, **settings)  # type: ignore[arg-type]
    return replace(training, batch_size=min(size, len(data)))


def prepared(data: Dataset, weights: Params) -> Batch:
    """All of a client's samples and targets as its model takes them: normalised, on its device, in its type."""
    like = next(iter(weights.values()))
    inputs = data.spec.normalise(data.inputs.to(like.device, like.dtype))
    targets = data.targets.to(like.device)
    return inputs, targets.to(like.dtype) if targets.is_floating_point() else targets


def check_model(model: nn.Module, data: Dataset, loss: str) -> None:
    """Refuse a model that does not fit the data and the loss before any work starts."""
    weights = parameters_of(model)
    if not weights:
        raise InvalidInput("the model has no parameters: there is nothing to train")
    inputs, targets = prepared(data.share([0]), weights)
    try:
        with torch.no_grad(), in_mode(model, "eval"), seeded(0, "check"):
            outputs = functional_call(model, {**weights, **buffers_of(model)}, (inputs,))
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as problem:
        first = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
        raise InvalidInput(f"the model does not accept samples of shape {data.spec.shape}: {first}") from problem
    if not isinstance(outputs, Tensor):
        raise InvalidInput(f"the model must return a tensor of outputs, not {type(outputs).__name__}")
    wanted = {
        "cross_entropy": data.spec.classes,
        "binary_cross_entropy": targets.numel(),
        "mse": targets.numel(),
    }.get(loss, outputs.numel())
    if wanted is None:
        raise InvalidInput(f"the loss {loss!r} needs classes, but {data.name!r} is a regression; use loss='mse'")
    if outputs.numel() != wanted:
        what = f"has {wanted} classes" if loss == "cross_entropy" else f"with the loss {loss!r} needs {wanted}"
        raise InvalidInput(
            f"the model has {outputs.numel()} outputs, but {data.name!r} {what}; build the model with {wanted} outputs"
        )


def explained(problem: ValueError) -> InvalidInput:
    """The error to show for one that came up inside a client's training."""
    if "more than 1 value per channel" in str(problem):
        return InvalidInput(
            "batch norm in train mode cannot train on a batch of one sample; "
            "use a batch size that leaves no single last sample, or mode='eval'"
        )
    return problem if isinstance(problem, InvalidInput) else InvalidInput(f"the client's training failed: {problem}")
