"""Observations, local training and data descriptions: checks, properties and threat models."""

from dataclasses import FrozenInstanceError
from typing import Any

import pytest
import torch
from torch import nn

from leakgauge import DataSpec, LocalTraining, Observation, fedavg, fedsgd
from leakgauge.core.errors import InvalidInput, MissingKnowledge, UnknownName
from leakgauge.core.params import flatten, parameters_of
from tests.federation.networks import batch_norm, client, conv, same

SPEC = DataSpec((2,), 2)


def observation(**changes):
    model = nn.Linear(2, 2)
    sent = parameters_of(model)
    parts: dict[str, Any] = {"model": model, "data": SPEC, "sent": sent, "gradient": sent}
    return Observation(**(parts | changes))


def tree(**changes):
    return parameters_of(nn.Linear(2, 2)) | changes


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"shape": ()}, "at least one size"),
        ({"shape": (0, 2)}, "each size of a sample's shape must be a whole number"),
        ({"shape": (2.0,)}, "each size of a sample's shape must be a whole number"),
        ({"shape": (True,)}, "each size of a sample's shape must be a whole number"),
        ({"shape": 3}, "shape must be a tuple, not 3"),
        ({"classes": 0}, r"classes \(None for a regression\) must be a whole number of at least 1, not 0"),
        ({"classes": 2.5}, "whole number"),
        ({"classes": "two"}, "whole number"),
        ({"mean": (1.0, 2.0)}, "mean has 2 values. Give one value, or one for each of the 3 channels"),
        ({"shape": (3,), "mean": (1.0, 2.0)}, "3 columns"),
        ({"mean": 0.5}, "mean must be a tuple, not 0.5"),
        ({"mean": (float("nan"),)}, "mean must be finite"),
        ({"mean": (10**400,)}, "mean must be finite"),
        ({"std": ("1",)}, "std must be finite numbers"),
        ({"std": (0.0,)}, "std must be positive.*Use 1 for a constant column"),
        ({"bounded": "yes"}, "bounded must be True or False"),
        ({"columns": ("a", "b")}, "2 column names for 3 columns"),
        ({"columns": (1, 2, 3)}, "column names must be texts"),
        ({"columns": "abc"}, "columns must be a tuple"),
    ],
)
def test_impossible_data_is_refused(changes, words):
    with pytest.raises(InvalidInput, match=words):
        DataSpec(**({"shape": (3, 4, 4), "classes": 2} | changes))


def test_lists_are_taken_as_tuples():
    lists: list[Any] = [[3, 4, 4], 2, [0.5], [1.0, 2.0, 3.0]]
    spec = DataSpec(*lists)
    assert spec == DataSpec((3, 4, 4), 2, mean=(0.5,), std=(1.0, 2.0, 3.0))
    assert hash(spec) == hash(DataSpec((3, 4, 4), 2, mean=(0.5,), std=(1.0, 2.0, 3.0)))
    assert spec.is_image
    assert not SPEC.is_image


@pytest.mark.parametrize(
    "spec",
    [
        DataSpec((3, 2, 2), 2, mean=(0.1, 0.2, 0.3), std=(1.0, 2.0, 3.0)),
        DataSpec((3, 2, 2), 2, mean=(0.5,), std=(0.25,)),
        DataSpec((5,), None, mean=tuple(range(5)), std=(2.0,)),
    ],
)
def test_normalising_is_undone_by_denormalising(spec):
    samples = torch.rand(4, *spec.shape, dtype=torch.float64)
    inputs = spec.normalise(samples)
    torch.testing.assert_close(spec.denormalise(inputs), samples)
    last = spec.mean[-1], spec.std[-1]
    torch.testing.assert_close(inputs[:, -1], (samples[:, -1] - last[0]) / last[1])
    assert inputs.dtype == samples.dtype


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"epochs": 0}, "epochs must be a whole number of at least 1, not 0"),
        ({"batch_size": 1.0}, "batch_size must be a whole number"),
        ({"samples": True}, "samples must be a whole number"),
        ({"lr": "fast"}, "lr must be a finite number, not 'fast'"),
        ({"lr": float("inf")}, "lr must be a finite number"),
        ({"lr": 10**400}, "lr must be a finite number"),
        ({"lr": True}, "lr must be a finite number"),
        ({"lr": 0}, "lr must be above 0"),
        ({"momentum": 1.0}, r"momentum must lie in \[0, 1\)"),
        ({"momentum": -0.1}, r"momentum must lie in \[0, 1\)"),
        ({"weight_decay": -1e-9}, "weight_decay must not be negative"),
        ({"mode": "test"}, "mode must be 'train' or 'eval', not 'test'"),
        ({"loss": None}, "loss must be the name of a loss"),
    ],
)
def test_impossible_recipes_are_refused(settings, words):
    with pytest.raises(InvalidInput, match=words):
        LocalTraining(**settings)


def test_batch_sizes_and_steps_count_the_ragged_batch():
    recipe = LocalTraining(epochs=3, batch_size=4, samples=10)
    assert recipe.batch_sizes == (4, 4, 2)
    assert recipe.steps == 9
    assert LocalTraining(epochs=2, batch_size=5, samples=10).batch_sizes == (5, 5)
    with pytest.raises(MissingKnowledge, match=r"needs the client's samples.*knowing\(samples=\.\.\.\)"):
        _ = LocalTraining(batch_size=4).steps


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gradient": None}, r"either a gradient \(FedSGD\) or returned weights \(FedAvg\)"),
        ({"returned": tree()}, "either a gradient"),
        ({"sent": {"weight": torch.zeros(2, 2)}}, "sent does not fit the model: it lacks 'bias' .is this the right"),
        ({"sent": tree(more=torch.zeros(1))}, "it has 'more'"),
        ({"gradient": tree(bias=torch.zeros(3))}, r"gradient\['bias'\] has shape \(3,\), but the model's is \(2,\)"),
        ({"gradient": tree(bias=torch.zeros(2, dtype=torch.long))}, "has type torch.int64, the model's is"),
        ({"gradient": tree(bias=torch.tensor([0.0, float("nan")]))}, r"gradient\['bias'\] holds NaN or Inf"),
        ({"sent": tree(bias=torch.tensor([0.0, float("inf")]))}, r"sent\['bias'\] holds NaN or Inf"),
        ({"buffers": {"running": torch.zeros(2)}}, "buffers does not fit the model: it has 'running'"),
        ({"labels": torch.tensor([0, 2])}, "labels must be at least 0 and below 2, but they run from 0 to 2"),
        ({"labels": torch.tensor([-1, 0])}, "labels must be at least 0"),
        ({"labels": torch.tensor([0.0, 1.0])}, "labels must be whole numbers"),
        ({"labels": torch.tensor(1)}, "labels must be one for each sample"),
        ({"labels": torch.tensor([[0], [1]])}, "labels must be one for each sample"),
        ({"labels": torch.tensor([0]), "training": LocalTraining(samples=2)}, "1 labels are granted for 2 samples"),
        ({"labels": torch.tensor([float("nan")]), "data": DataSpec((2,), None)}, "labels hold NaN"),
        ({"label_counts": torch.tensor([1, 1]), "data": DataSpec((2,), None)}, "only for classification"),
        ({"label_counts": torch.tensor([1, 1, 0])}, "one count for each of the 2 classes"),
        ({"label_counts": torch.tensor([-1, 1])}, "label_counts must be at least 0"),
        (
            {"label_counts": torch.tensor([1, 1]), "training": LocalTraining(samples=3)},
            "add up to 2, but the client has 3 samples",
        ),
        ({"label_batches": torch.tensor([[0, 1]]), "data": DataSpec((2,), None)}, "only for classification"),
        ({"label_batches": torch.tensor([0, 1])}, r"label_batches must be \(epochs, samples\), not of shape \(2,\)"),
        ({"label_batches": torch.zeros(0, 2, dtype=torch.long)}, r"not of shape \(0, 2\)"),
        (
            {"label_batches": torch.tensor([[0, 2]])},
            "label_batches must be at least 0 and below 2, but they run from 0 to 2",
        ),
        ({"label_batches": torch.tensor([[0.0, 1.0]])}, "label_batches must be whole numbers"),
        ({"label_batches": torch.tensor([[0, 1], [1, 0]])}, r"has shape \(2, 2\), expected \(1, 2\)"),
        (
            {"label_batches": torch.tensor([[0, 1]]), "training": LocalTraining(samples=3)},
            r"has shape \(1, 2\), expected \(1, 3\)",
        ),
        (
            {"label_batches": torch.tensor([[0, 1]]), "labels": torch.tensor([1, 1])},
            "label_batches and labels do not hold the same labels",
        ),
        (
            {"label_batches": torch.tensor([[0, 1]]), "label_counts": torch.tensor([0, 2])},
            "label_batches and label_counts do not hold the same labels",
        ),
        ({"defences": "GaussianNoise(sigma=0.1)"}, "defences must be a tuple of texts, the reprs of the defences"),
        ({"defences": (0.1,)}, "defences must be a tuple of texts"),
    ],
)
def test_impossible_observations_are_refused(changes, words):
    with pytest.raises(InvalidInput, match=words):
        observation(**changes)


WEIGHTS = {"gradient": None, "returned": tree()}


@pytest.mark.parametrize(
    ("batches", "recipe", "words"),
    [
        ([[0, 1], [0, 0]], {}, "must hold the same labels in every epoch, in any order"),
        ([[0, 1]], {}, r"has shape \(1, 2\), expected \(2, 2\)"),
        (
            [[0, 1], [1, 0]],
            {"epochs": None},
            r"epochs is unknown here. Supply both: observation.knowing\(epochs=",
        ),
        ([[0, 1], [1, 0]], {"batch_size": None}, "batch_size is unknown here"),
        ([[0, 1], [1, 0]], {"samples": None}, "samples is unknown here"),
    ],
)
def test_impossible_label_batches_are_refused(batches, recipe, words):
    known = {"epochs": 2, "samples": 2, "batch_size": 1, **recipe}
    with pytest.raises(InvalidInput, match=words):
        observation(**WEIGHTS, label_batches=torch.tensor(batches), training=LocalTraining(**known))


def test_label_batches_that_agree_with_what_else_is_granted():
    batches = torch.tensor([[0, 1], [1, 0]], dtype=torch.int32)
    seen = observation(
        **WEIGHTS, label_batches=batches, training=LocalTraining(epochs=2, samples=2, batch_size=1),
        labels=torch.tensor([1, 0]), label_counts=torch.tensor([1, 1]), defences=["A()"],
    )  # fmt: skip
    assert seen.label_batches is batches
    assert seen.defences == ("A()",)
    assert seen.threat_model()[-1] == (
        "It is granted the client's labels and label counts and labels of every batch and defences (A())."
    )


def test_an_answer_has_the_number_type_of_the_weights_that_were_sent():
    half = {name: value.half() for name, value in tree().items()}
    for kind in ({"gradient": half}, {"gradient": None, "returned": half}):
        seen = observation(**kind)
        assert {value.dtype for value in seen.difference().values()} == {torch.float32}
    with pytest.raises(InvalidInput, match="NaN or Inf"):  # too large for the weights' type
        observation(gradient={name: value.double() + 1e300 for name, value in tree().items()})


def test_tensors_are_kept_in_the_order_of_the_model():
    weights = tree()
    turned = dict(reversed(weights.items()))
    assert list(turned) != list(weights)
    seen = observation(sent=turned, gradient=turned)
    assert list(seen.sent) == list(seen.gradient) == list(weights)


def test_an_observation_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        observation().client = "another"


def test_knowing_more_makes_a_copy():
    seen, _ = fedavg(conv(), client(6), lr=0.1, batch_size=2, hidden=["lr", "samples"])
    more = seen.knowing(lr=0.1, samples=6, labels=torch.zeros(6, dtype=torch.long), client="Ada")
    assert (more.training.lr, more.training.samples, more.training.batch_size) == (0.1, 6, 2)
    assert (more.client, more.sent) == ("Ada", seen.sent)
    assert (seen.training.lr, seen.labels) == (None, None)
    assert seen.knowing(training=LocalTraining(lr=3.0)).training == LocalTraining(lr=3.0)


def test_knowing_checks_its_arguments():
    seen, _ = fedavg(conv(), client(6), lr=0.1, hidden=["lr"])
    with pytest.raises(UnknownName, match="did you mean 'labels'"):
        seen.knowing(lables=torch.zeros(6))
    with pytest.raises(InvalidInput, match="lr must be above 0"):
        seen.knowing(lr=-1.0)
    with pytest.raises(InvalidInput, match="2 labels are granted for 6"):
        seen.knowing(labels=torch.tensor([0, 1]))


def test_the_update_is_the_gradient_or_the_difference():
    model, data = conv(), client(4)
    gradient, _ = fedsgd(model, data)
    assert gradient.difference() is gradient.gradient
    assert gradient.summed_gradient() is gradient.gradient
    weights, _ = fedavg(model, data, lr=0.1)
    torch.testing.assert_close(
        flatten(weights.summed_gradient()), flatten(gradient.gradient), rtol=1e-4, atol=1e-5
    )  # one full batch: FedAvg is FedSGD
    torch.testing.assert_close(flatten(weights.difference()), 0.1 * flatten(gradient.gradient), rtol=1e-4, atol=1e-6)
    with pytest.raises(MissingKnowledge, match="needs the client's lr"):
        fedavg(model, data, lr=0.1, hidden=["lr"])[0].summed_gradient()


def test_another_device_gets_a_copy_of_everything():
    seen, _ = fedavg(
        batch_norm(), client(6), lr=0.1, granted=["labels", "label_counts", "label_batches"], knows_defence=True
    )
    moved = seen.to("cpu")
    assert moved.device == torch.device("cpu")
    assert moved.model is not seen.model
    for name in ("sent", "returned", "buffers", "returned_buffers"):
        assert same(getattr(moved, name), getattr(seen, name))
    assert same(moved.labels, seen.labels)
    assert same(moved.label_counts, seen.label_counts)
    assert same(moved.label_batches, seen.label_batches)
    assert moved.label_batches is not None
    assert moved.defences == seen.defences == ()
    assert moved.gradient is None
    assert moved.threat_model() == seen.threat_model()


def test_buffers_to_run_the_model_with():
    seen, _ = fedsgd(batch_norm(), client(6))
    changed = {name: value + 1 for name, value in seen.model_buffers().items()}
    assert same(seen.knowing(buffers=changed).model_buffers(), changed)
    own = dict(seen.model.named_buffers())
    assert same(seen.knowing(buffers=None).model_buffers(), own)


def test_the_threat_model_in_sentences():
    seen, _ = fedavg(conv(), client(6), lr=0.1, epochs=2, hidden=["batch_size", "samples"])
    sentences = seen.threat_model()
    assert "the weights after local training" in sentences[0]
    assert "lr 0.1, epochs 2, momentum 0.0" in sentences[1]
    assert sentences[2:] == [
        "It does not know: batch_size, samples.",
        "It has no public data of the same kind.",
        "It is granted nothing else.",
    ]
    seen, _ = fedsgd(batch_norm(), client(6), granted=["labels", "label_counts"])
    assert "the gradient of one batch" in seen.threat_model()[0]
    assert seen.threat_model()[-3:] == [
        "Batch-norm statistics are shared with it.",
        "It has no public data of the same kind.",
        "It is granted the client's labels and label counts.",
    ]
    seen, _ = fedsgd(batch_norm(), client(6), share_statistics=False)
    assert "Batch-norm statistics are withheld from it." in seen.threat_model()


def test_repr_shows_knowledge_and_no_tensors_of_weights():
    text = repr(observation(labels=torch.tensor([0, 1])))
    assert "labels=tensor([0, 1])" in text
    assert "sent" not in text
    assert "LocalTraining(lr=None" in text


def test_a_counter_of_truth_values_is_refused():
    """Batch norm counts batches in whole numbers, which truth values cannot hold."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    weights = {name: value.detach() for name, value in model.named_parameters()}
    counted = {**dict(model.named_buffers()), "1.num_batches_tracked": torch.tensor(True)}
    with pytest.raises(InvalidInput, match=r"has type torch\.bool"):
        Observation(
            model, DataSpec((2,), 2, bounded=False), weights, LocalTraining(), gradient=weights, buffers=counted
        )
