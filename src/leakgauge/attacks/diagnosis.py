"""Likely causes for the failure of an attack, derived from what the attacker sees, each with a remedy to try.

The attacker does not know the true samples. It sees the message, the loss of its own search and the labels that it
used. A cause is therefore a hint. If an attack fails for one of these causes, the failure is no sign of safety.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from leakgauge.attacks.base import Reconstruction
from leakgauge.attacks.inversion.fragility import first_layer_share, label_probability
from leakgauge.attacks.inversion.known_defences import known_defences, noise_share
from leakgauge.attacks.inversion.labels import granted_labels
from leakgauge.attacks.inversion.last_layer import last_layer
from leakgauge.attacks.inversion.layers import layers_of_model
from leakgauge.attacks.inversion.update_models import FullSimulation
from leakgauge.core.errors import LeakgaugeError, MissingKnowledge
from leakgauge.core.observation import LocalTraining, Observation
from leakgauge.core.params import Params, inside
from leakgauge.federation.training import in_mode

#: A loss that falls by more than this share over the last tenth of the steps is still falling.
STILL_FALLING = 0.03
#: With fewer steps than this, a search has hardly begun.
FEWEST_STEPS = 20
#: Up to this unexplained share of the update's squared length, the returned samples explain the message.
EXPLAINED = 1e-3
#: The same, if the client used several batches in an order that the attacker does not know.
EXPLAINED_UP_TO_ORDER = 0.1
#: A smaller share of the update's squared length in the first layer is a vanishing gradient.
VANISHING = 1e-5
#: The probability of the labels from which samples leave only a small gradient.
PREDICTED = 0.9
#: A larger ratio of the first singular value that samples cannot cause to the largest one is noise.
NOISY_RANK = 1e-3
#: The number of samples by which label counts may differ from the last layer before they contradict it.
LABEL_SLACK = 0.1
#: The sentence for an attack without a visible cause.
NO_CAUSE = "The attacker sees no cause. Try more restarts, more steps or another attack before you rely on this result."


def diagnose(observation: Observation, reconstruction: Reconstruction) -> tuple[str, ...]:
    """Return sentences about the likely causes for the failure of an attack, with the most certain causes first.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
        reconstruction: The result of the attack.
    """
    if not any(bool(value.any()) for value in observation.difference().values()):
        return ("The update is zero, so no attack can recover anything from this message.",)
    noisy = _rank_shows_noise(observation)
    wrong_labels = not noisy and _labels_contradict(observation, reconstruction)
    causes = [
        *_ending(reconstruction),
        *_labels(observation, reconstruction, wrong_labels),
        *_defences(observation, noisy),
        *_client_model(observation),
        *_gradients(observation),
    ]
    if not (noisy or wrong_labels or observation.defences or _active_dropout(observation)):
        causes += _search(observation, reconstruction)
    return tuple(causes) or (NO_CAUSE,)


def _ending(reconstruction: Reconstruction) -> Iterator[str]:
    """Yield a sentence if the attack was ended early, diverged or returned no samples."""
    kind = reconstruction.outcome.kind
    if kind == "interrupted":
        yield "The attack was interrupted, or its time ran out. Run it again with more time."
    elif kind in ("guess", "failed"):
        yield (
            "The message explains no samples better than a blind guess, because it holds too much noise or too few "
            "entries. Try a weaker defence to see what the attack recovers without it."
        )
    elif kind == "diverged" or not bool(torch.isfinite(reconstruction.samples).all()):
        yield "The search diverged, because its loss was no longer finite. Try a smaller learning rate of the attack."
    elif not len(reconstruction.samples):
        yield (
            f"The attack returns only samples that it can confirm, and ended with: {reconstruction.outcome}. "
            "Try an optimisation attack, which also returns approximate samples."
        )


def _labels(observation: Observation, reconstruction: Reconstruction, wrong: bool) -> Iterator[str]:
    """Yield a sentence if the labels of the attack are wrong, or were only estimated."""
    if wrong:
        yield (
            "The labels that the attack used contradict the last layer's update. Grant the labels, or try an attack "
            "that searches for them too, such as dlg."
        )
    elif reconstruction.labels is None or observation.data.classes is None or not len(reconstruction.samples):
        return
    elif granted_labels(observation) is None and observation.training.samples != 1:
        yield "The labels were estimated and may be wrong. Grant the labels to see whether they are the cause."


def _labels_contradict(observation: Observation, reconstruction: Reconstruction) -> bool:
    r"""Return whether the last layer's bias proves that the label counts of a reconstruction are wrong.

    The gradient of the bias of class k is :math:`\bar p_k - \lambda_k / N`. The mean probability :math:`\bar p_k` lies
    between 0 and 1. This gives a lower and an upper limit of the number :math:`\lambda_k` of samples with this label,
    among :math:`N` samples.
    """
    labels = reconstruction.labels
    classes, samples = observation.data.classes, observation.training.samples
    if labels is None or classes is None or len(labels) != samples or observation.defences:
        return False
    if observation.kind == "weights" and not _counts_alike(observation.training):
        return False
    try:
        gradient = last_layer(observation, "bias").mean_gradient(observation, observation.difference())
    except MissingKnowledge:
        return False
    counts, gradient = torch.bincount(labels.long(), minlength=classes), samples * gradient.double().cpu()
    too_few, too_many = counts < -gradient - LABEL_SLACK, counts > samples - gradient + LABEL_SLACK
    return bool((too_few | too_many).any())


def _counts_alike(training: LocalTraining) -> bool:
    """Return whether local training gives every sample the same weight in the update."""
    if training.samples is None or training.batch_size is None:
        return False
    return training.momentum == 0 and training.weight_decay == 0 and training.samples % training.batch_size == 0


def _defences(observation: Observation, noisy: bool) -> Iterator[str]:
    """Yield a sentence about the effect of known defences, or about the trace of an unknown defence."""
    if observation.defences:
        names = ", ".join(observation.defences)
        noise = noise_share(observation, known_defences(observation))
        if noise > 0:
            yield (
                f"The client defends itself with {names}. About {noise:.0%} of the update's squared length is noise. "
                "Try a stronger prior, and compare with the attack on the undefended client."
            )
        else:
            yield f"The client defends itself with {names}. Compare with the attack on the undefended client."
    elif noisy:
        yield (
            "The last layer's gradient has more directions than the samples can cause, so an unknown defence has "
            "changed the message. Try an attacker who knows the defence."
        )


def _rank_shows_noise(observation: Observation) -> bool:
    """Return whether the rank of the last layer's gradient shows added noise.

    This is so if the rank is higher than the client's samples can cause. Each sample adds a matrix of rank one to the
    gradient of a layer that gets one input vector per sample. The result is false if the attacker knows the defences.
    """
    samples = observation.training.samples
    if observation.gradient is None or samples is None or observation.defences is not None:
        return False
    try:
        reading = last_layer(observation)
    except MissingKnowledge:
        return False
    values = torch.linalg.svdvals(observation.gradient[inside(reading.name, "weight")].double())
    excess = len(values) > samples and bool(values[samples] > NOISY_RANK * values[0])
    return excess and _sees_samples_once(observation, reading.layer)


def _sees_samples_once(observation: Observation, layer: nn.Module) -> bool:
    """Return whether a layer gets one input vector for each sample, instead of one for each token or time step."""
    rows: list[int] = []
    handle = layer.register_forward_pre_hook(lambda module, inputs: rows.append(inputs[0][..., 0].numel()))
    like = next(iter(observation.sent.values()))
    dummies = torch.zeros(2, *observation.data.shape, device=like.device, dtype=like.dtype)
    try:
        with torch.no_grad(), in_mode(observation.model, "eval"):
            functional_call(observation.model, {**observation.sent, **observation.model_buffers()}, (dummies,))
    except (RuntimeError, ValueError, TypeError, IndexError):
        return False
    finally:
        handle.remove()
    return rows == [len(dummies)]


def _client_model(observation: Observation) -> Iterator[str]:
    """Yield a sentence if dropout or batch norm in train mode hinders the attack."""
    if _active_dropout(observation):
        yield (
            "Dropout in train mode used random masks, which the server does not see. Try a client in eval mode to see "
            "whether dropout is the cause."
        )
    normed = any(isinstance(module, _BatchNorm) for module in observation.model.modules())
    if not normed or observation.training.mode != "train":
        return
    if observation.buffers is None and observation.returned_buffers is None:
        yield (
            "Batch norm in train mode used statistics of the client's batches, which the server does not see. "
            "Try an attacker who sees them (share_statistics=True), or a client in eval mode."
        )
    else:
        yield (
            "Batch norm in train mode mixes the samples of a batch. Try a client in eval mode to see whether this is "
            "the cause."
        )


def _active_dropout(observation: Observation) -> bool:
    layers = [module for module in observation.model.modules() if isinstance(module, _DropoutNd)]
    return observation.training.mode == "train" and any(layer.p > 0 for layer in layers)


def _gradients(observation: Observation) -> Iterator[str]:
    """Yield a sentence if the gradient vanishes, or is small because the model already predicts the label well."""
    share = first_layer_share(observation)
    if share < VANISHING:
        yield (
            f"The gradient vanishes: the first layer, where samples enter, has only {share:.1g} of the update's "
            "squared length. Try an objective that gives early layers more weight, such as L2(decay=0.4)."
        )
    certain = label_probability(observation)
    if certain is not None and certain > PREDICTED and observation.training.samples == 1 and not observation.defences:
        yield (
            f"The model already predicts the label with a probability of {certain:.2f}. Such a sample leaves a small "
            "gradient. Try an earlier round or an untrained model."
        )


def _search(observation: Observation, reconstruction: Reconstruction) -> list[str]:
    """Return a sentence about the optimisation, such as too few steps, a local minimum or several solutions."""
    trace = reconstruction.trace
    if trace is None or reconstruction.outcome.kind in ("diverged", "interrupted", "guess", "failed"):
        return []
    predicted = simulated(observation, reconstruction)
    rest = None if predicted is None else _unexplained(predicted, observation.difference())
    first = None if predicted is None else _unexplained(predicted, _first_layer(observation))
    fall, steps = _last_fall(trace.losses), len(trace.losses)
    if rest is not None and first is not None and max(rest, first) <= EXPLAINED:
        return [
            f"Several samples explain the message: those that were returned leave {max(rest, first):.1g} of the "
            "update's squared length unexplained. Try a stronger prior, or an attacker who knows more."
        ]
    if reconstruction.outcome.kind == "finished" and (fall > STILL_FALLING or steps < FEWEST_STEPS):
        falling = f"the loss fell by {fall:.0%} over the last tenth of the {steps} steps" if fall else f"{steps} steps"
        return [f"The budget was too small: {falling}. Try more steps."]
    if rest is not None and rest > (EXPLAINED_UP_TO_ORDER if _has_batches(observation) else EXPLAINED):
        return [
            f"The search ended in a local minimum: its samples leave {rest:.1%} of the update's squared length "
            "unexplained, and the loss no longer falls. Try more restarts, or another optimiser."
        ]
    if first is not None and not _has_batches(observation):
        return [
            f"The search matched the later layers only: its samples leave {first:.1%} of the first layer's update "
            "unexplained. Try more steps, or an objective that gives early layers more weight, such as L2(decay=0.4)."
        ]
    return []


def _has_batches(observation: Observation) -> bool:
    training = observation.training
    return observation.kind == "weights" and training.batch_size != training.samples


def _last_fall(losses: Tensor) -> float:
    """Return the relative fall of the loss over the last tenth of the steps, or 0 if there are too few steps."""
    if len(losses) < FEWEST_STEPS:
        return 0.0
    tenth = len(losses) // 10
    before, after = float(losses[-2 * tenth : -tenth].median()), float(losses[-tenth:].median())
    return (before - after) / abs(before) if before and math.isfinite(before - after) else 0.0


def simulated(observation: Observation, reconstruction: Reconstruction) -> Params | None:
    """Simulate local training on the reconstructed samples, and return its update, or ``None`` if this is impossible.

    The order of the samples is unknown. With several batches, even the true samples would therefore not give exactly
    the observed update.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
        reconstruction: The result of the attack.
    """
    samples, labels = reconstruction.samples, reconstruction.labels
    if labels is None or len(samples) != observation.training.samples or len(labels) != len(samples):
        return None
    like = next(iter(observation.sent.values()))
    inputs = observation.data.normalise(samples.to(like.device, like.dtype))
    try:
        client = FullSimulation().begin(observation, functional=False)
        return client(inputs, labels.to(like.device))
    except (LeakgaugeError, RuntimeError, ValueError):
        return None


def _first_layer(observation: Observation) -> Params:
    """Return the part of the update that belongs to the first trained layer."""
    difference = observation.difference()
    trained = [name for name, value in observation.model.named_parameters() if value.requires_grad]
    names = layers_of_model(observation.model, trained)[0].parameters
    return {name: difference[name] for name in names}


def _unexplained(predicted: Params, observed: Params) -> float:
    """Return how much of the observed update is left after the best multiple of the prediction is subtracted.

    The result is a share of the squared length of the observed update.
    """
    one = torch.cat([predicted[name].detach().double().flatten() for name in observed])
    other = torch.cat([value.double().flatten() for value in observed.values()])
    cosine = float(one @ other / (one.norm() * other.norm()).clamp_min(1e-300))
    return 1 - cosine**2 if cosine > 0 else 1.0
