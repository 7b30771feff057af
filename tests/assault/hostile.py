"""Captures made by hand to do harm, each with the right signature."""

import json

import torch

from tests.assault.mutators import nested, opened, sealed, signed, split

EMPTY = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
WRAPS = [2**63 - 1, 2**63 - 1, 6]


def training(**changes):
    return lambda document, tensors: sealed(document | {"training": document["training"] | changes}, tensors)


def data(**changes):
    return lambda document, tensors: sealed(document | {"data": document["data"] | changes}, tensors)


def field(**changes):
    return lambda document, tensors: sealed(document | changes, tensors)


def options(**changes):
    def build(document, tensors):
        recipe = document["model"]
        return sealed(document | {"model": recipe | {"options": recipe["options"] | changes}}, tensors)

    return build


def tensor(**changes):
    """Replace tensors. The names have __ in place of / and of a dot."""
    given = {name.replace("__", "/", 1).replace("__", "."): value for name, value in changes.items()}
    return lambda document, tensors: sealed(document, {**tensors, **given})


def filled(prefix, value):
    def build(document, tensors):
        return sealed(
            document,
            {name: torch.full_like(one, value) if name.startswith(prefix) else one for name, one in tensors.items()},
        )

    return build


def counts(values, samples=4):
    def build(document, tensors):
        changed = document | {"training": document["training"] | {"samples": samples}}
        return sealed(changed, {**tensors, "label_counts": torch.tensor(values)})

    return build


def text(change):
    return lambda document, tensors: sealed(change(json.dumps(document)), tensors)


def header(change):
    def build(document, tensors):
        top, body = split(sealed(document, tensors))
        changed = change(top)
        return signed(top if changed is None else changed, body)

    return build


def entry(**changes):
    """Change what the header promises of one tensor."""
    return header(lambda top: top["sent/head.bias"].update(changes))


def metadata(**changes):
    return header(lambda top: top["__metadata__"].update(changes))


def both(*steps):
    """Apply several changes of the description."""

    def build(document, tensors):
        raw = sealed(document, tensors)
        for step in steps:
            raw = step(*opened(raw))
        return raw

    return build


REFUSED, ATTACKED, EITHER = "refused", "attacked", None
#: The captures: a function of a description and tensors, what becomes of the capture, and a part of the sentence.
CAPTURES = {
    # numbers of samples, and sums that wrap around
    "counts wrap around": (counts(WRAPS), REFUSED, "the sum of label_counts must be at most"),
    "counts wrap around, samples unknown": (counts(WRAPS, None), REFUSED, "the sum of label_counts"),
    "counts wrap to zero": (counts([2**63 - 1, 2**63 - 1, 2], None), REFUSED, "the sum of label_counts"),
    "a billion counted": (counts([10**9, 0, 0], None), ATTACKED, "of memory for 1,000,000,000 samples"),
    "negative counts": (counts([-1, 5, 0]), REFUSED, "must be at least 0"),
    "no samples counted": (counts([0, 0, 0], None), EITHER, ""),
    "counts as fractions": (tensor(label_counts=torch.tensor([1.5, 2.5, 0.0])), REFUSED, "whole numbers"),
    "counts of another shape": (
        tensor(label_counts=torch.zeros(0, 3, dtype=torch.long)),
        REFUSED,
        "label_counts has shape",
    ),
    "counts as booleans": (tensor(label_counts=torch.tensor([True, True, True])), REFUSED, "torch.bool"),
    "a billion samples": (training(samples=10**9, batch_size=10**9), ATTACKED, "of memory for 1,000,000,000 samples"),
    "a trillion samples": (training(samples=10**12), REFUSED, "samples must be at most"),
    "samples beyond 64 bits": (training(samples=2**70), REFUSED, "samples must be at most"),
    "samples as a boolean": (training(samples=True), REFUSED, "samples must be a whole number"),
    "samples as a fraction": (training(samples=4.5), REFUSED, "samples must be a whole number"),
    "samples as a text": (training(samples="4"), REFUSED, "samples must be a whole number"),
    "samples as a list": (training(samples=[4]), REFUSED, "samples must be a whole number"),
    "negative samples": (training(samples=-4), REFUSED, "samples must be a whole number"),
    "ten million samples": (training(samples=10**7, batch_size=10**7), ATTACKED, "of memory for 10,000,000 samples"),
    # endless training
    "a billion epochs": (training(epochs=10**9), REFUSED, "epochs must be at most"),
    "a million epochs": (training(epochs=10**6), REFUSED, "local batches, more than the limit"),
    "half a million epochs": (training(epochs=500_000), ATTACKED, "an attack simulates up to"),
    "steps of single samples": (training(samples=10**9, batch_size=1), REFUSED, "more than the limit of 1,000,000"),
    "a batch beyond all samples": (training(batch_size=10**9), ATTACKED, ""),
    "a batch beyond 64 bits": (training(batch_size=2**64), REFUSED, "batch_size must be at most"),
    "endless accumulation": (training(accumulation=10**9), ATTACKED, ""),
    "accumulation of nothing": (training(accumulation=0), REFUSED, "accumulation must be"),
    # the other numbers of the recipe
    "lr of 1e300": (training(lr=1e300), REFUSED, "lr must be at most"),
    "lr of 1e-300": (training(lr=1e-300), REFUSED, "lr must be at least"),
    "lr of 1e-12": (training(lr=1e-12), ATTACKED, ""),
    "lr of 1e6": (training(lr=1e6), ATTACKED, ""),
    "lr of NaN": (training(lr=float("nan")), REFUSED, "lr must be a finite number"),
    "lr of infinity": (training(lr=float("inf")), REFUSED, "lr must be a finite number"),
    "lr of 400 digits": (training(lr=10**400), REFUSED, "lr must be a finite number"),
    "lr of 5,000 digits": (text(lambda one: one.replace('"lr": 0.1', '"lr": 1' + "0" * 5000)), REFUSED, "not JSON"),
    "lr as a boolean": (training(lr=True), REFUSED, "lr must be a finite number"),
    "momentum of 1": (training(momentum=1.0), REFUSED, "momentum must lie in"),
    "momentum of nearly 1": (training(momentum=1 - 1e-16), ATTACKED, ""),
    "dampening of 2": (training(dampening=2.0, momentum=0.5), REFUSED, "dampening must lie in"),
    "weight decay of 1e300": (training(weight_decay=1e300), REFUSED, "weight_decay must be at most"),
    "clipping to nothing": (training(clip_norm=1e-300), ATTACKED, ""),
    "clipping to infinity": (training(clip_norm=float("inf")), REFUSED, "clip_norm must be a finite number"),
    "betas of 1": (training(optimiser="adam", betas=[1.0, 1.0]), REFUSED, "betas must lie in"),
    "betas of texts": (training(optimiser="adam", betas=["a", "b"]), REFUSED, "betas must be two numbers"),
    "a million betas": (training(optimiser="adam", betas=[0.5] * 10**6), REFUSED, ""),
    "eps of zero": (training(optimiser="adam", eps=0.0), REFUSED, "eps must be above 0"),
    "smoothing of nearly 1": (training(label_smoothing=1 - 1e-16), ATTACKED, ""),
    "proximal weight of 1e300": (training(proximal=1e300), REFUSED, "proximal must be at most"),
    # schedules
    "a schedule that overflows": (
        training(schedule="exponential(factor=1000)", epochs=5000),
        ATTACKED,
        "multiplies the",
    ),
    "a schedule of zeros": (training(schedule=[0.0]), ATTACKED, ""),
    "a schedule of a million factors": (training(schedule=[1.0] * 600_000), EITHER, ""),
    "a schedule of NaN": (training(schedule=[float("nan")]), REFUSED, "schedule must hold"),
    "a schedule that imports": (
        training(schedule="__import__('os').system('touch executed')"),
        REFUSED,
        "cannot be read",
    ),
    "a schedule with an unhashable key": (training(schedule="cosine(per={[]: 1})"), REFUSED, "cannot be read"),
    "a schedule of parentheses": (training(schedule="(" * 199), REFUSED, "cannot be read"),
    # names
    "a loss of a million characters": (training(loss="x" * 10**6), REFUSED, "loss must be the name of a loss"),
    "a loss of other code": (training(loss="os:getcwd"), ATTACKED, "no loss 'os:getcwd'"),
    "a loss of booleans": (training(loss=True), REFUSED, "loss must be the name"),
    "a loss of a regression": (training(loss="mse"), ATTACKED, ""),
    "an unknown mode": (training(mode="trainx"), REFUSED, "mode must be"),
    "an unknown optimiser": (training(optimiser="x" * 10**6), REFUSED, "optimiser"),
    "a client of a million characters": (field(client="x" * 10**6), REFUSED, "the name of a client may have up to"),
    "a client that steers a terminal": (field(client="\x1b]0;x\x07\x1b[2J"), ATTACKED, ""),
    "a client of half a character": (field(client="\ud800"), EITHER, ""),
    "a round of 300 digits": (field(round=10**300), REFUSED, "round must be at most"),
    "a negative round": (field(round=-1), REFUSED, "round must be a whole number"),
    "a thousand defences": (field(defences=["Clipping(norm=1.0)"] * 1000), REFUSED, "up to 100 defences"),
    "a defence that never ends": (field(defences=["GaussianNoise(" * 10**5]), REFUSED, "a defence may have up to"),
    "a defence of infinite noise": (field(defences=["GaussianNoise(sigma=1e999)"]), EITHER, ""),
    "a defence of code": (field(defences=["__import__('os').system('touch executed')"]), EITHER, ""),
    # shapes and statistics
    "samples of another shape": (data(shape=[1, 9, 9]), ATTACKED, "the model does not accept the samples"),
    "samples of 3.6 GB": (data(shape=[1, 30_000, 30_000]), ATTACKED, "of memory"),
    "samples of a million dimensions": (data(shape=[1] * 10**5), REFUSED, "may have up to 8 sizes"),
    "a shape beyond 64 bits": (data(shape=[2**32, 2**32]), REFUSED, "must be at most"),
    "samples of no values": (data(shape=[1, 0, 8]), REFUSED, "must be a whole number"),
    "samples without a shape": (data(shape=[]), REFUSED, "must have at least one size"),
    "a shape of booleans": (data(shape=[True, 8, 8]), REFUSED, "must be a whole number"),
    "a shape in a shape": (data(shape=nested(400)), REFUSED, "must be a whole number"),
    "ten million classes": (data(classes=10**7), ATTACKED, "classes, and the model returns"),
    "a billion classes": (data(classes=10**9), REFUSED, "must be at most 10,000,000"),
    "one class": (data(classes=1), ATTACKED, ""),
    "classes of a regression": (data(classes=None), ATTACKED, ""),
    "a mean of 1e300": (data(mean=[1e300]), REFUSED, "mean must be at most"),
    "a mean of 1e30": (data(mean=[1e30]), ATTACKED, ""),
    "a std of 1e-300": (data(std=[1e-300]), REFUSED, "std must be at least"),
    "a std of 1e-30": (data(std=[1e-30]), ATTACKED, ""),
    "a std of NaN": (data(std=[float("nan")]), REFUSED, "std must be finite"),
    "a million means": (data(mean=[0.0] * 10**5), REFUSED, "mean has 100000 values"),
    "columns of a picture": (data(columns=["x" * 10**6]), REFUSED, "the name of a column may have up to"),
    # the model
    "a model of a billion neurons": (options(hidden=[10**9]), REFUSED, ""),
    "a model of a million layers": (options(hidden=[1] * 10**6), REFUSED, "too many options"),
    "a model of other code": (
        field(model={"name": "os:system", "options": {"command": "touch executed"}}),
        REFUSED,
        "which code",
    ),
    "a model without a name": (field(model={}), REFUSED, ""),
    "a model in a model": (options(hidden=nested(300)), REFUSED, ""),
    "frozen weights that are not there": (field(frozen=["x"] * 1000), REFUSED, ""),
    "all weights frozen": (
        lambda document, tensors: sealed(
            document | {"frozen": [name[5:] for name in tensors if name.startswith("sent/")]}, tensors
        ),
        EITHER,
        "",
    ),
    # tensors
    "weights of 3e38": (filled("sent/", 3e38), ATTACKED, ""),
    "an update of 3e38": (filled("returned/", 3e38), ATTACKED, ""),
    "an update of nothing": (filled("returned/", 0.0), ATTACKED, ""),
    "weights of 1e-45": (filled("sent/", 1e-45), ATTACKED, ""),
    "weights of NaN": (filled("sent/", float("nan")), REFUSED, "NaN or Inf"),
    "weights in eight bits": (tensor(sent__head__bias=torch.zeros(3).to(torch.float8_e4m3fn)), REFUSED, ""),
    "weights of complex numbers": (
        tensor(sent__head__bias=torch.zeros(3, dtype=torch.complex64)),
        REFUSED,
        "complex64",
    ),
    "weights of nothing": (tensor(sent__head__bias=torch.zeros(0)), REFUSED, "shapes"),
    "labels beyond the classes": (tensor(labels=torch.tensor([0, 1, 2, 3])), REFUSED, "below 3"),
    "labels beyond 64 bits": (tensor(labels=torch.tensor([0, 1, 2**63 - 1, -(2**63)])), REFUSED, "must be at least 0"),
    "labels without samples": (both(training(samples=None), tensor(labels=torch.zeros(0).long())), EITHER, ""),
    "labels as booleans": (tensor(labels=torch.tensor([True] * 4)), REFUSED, "torch.bool"),
    "labels of unsigned numbers": (tensor(labels=torch.tensor([0] * 4, dtype=torch.uint64)), REFUSED, "torch.uint64"),
    "labels in eight bits": (tensor(labels=torch.tensor([0, 1, 2, 1], dtype=torch.uint8)), ATTACKED, ""),
    "batches of other labels": (
        tensor(label_batches=torch.tensor([[0, 1, 2, 1], [0, 0, 0, 0]])),
        REFUSED,
        "every epoch",
    ),
    "a tensor of no tree": (tensor(truth=torch.zeros(1)), REFUSED, "unexpected tensor"),
    # the file
    "another version": (metadata(version="999999999"), REFUSED, "Upgrade"),
    "a version of 5,000 digits": (metadata(version="9" * 5000), REFUSED, "is not a number"),
    "a version of Arabic digits": (metadata(version="٣"), REFUSED, "is not a number"),
    "another kind": (metadata(leakgauge="x" * 10**6), REFUSED, "expected an observation"),
    "a checksum of nothing": (metadata(sha256=""), EITHER, ""),
    "a description in a list": (text(lambda one: "[" * 900 + one + "]" * 900), REFUSED, "is not a JSON object"),
    "a description of brackets": (text(lambda one: "[" * 10**6), REFUSED, "not JSON"),
    "a description of nothing": (text(lambda one: ""), REFUSED, "not JSON"),
    "a description of half characters": (text(lambda one: '{"\\ud800": 1}'), REFUSED, ""),
    "the same key twice": (text(lambda one: one[:-1] + ', "client": "Eve"}'), ATTACKED, ""),
    "a tensor beyond the file": (entry(data_offsets=[0, 2**62]), REFUSED, "cannot be read"),
    "a tensor of negative size": (entry(shape=[-3]), REFUSED, "cannot be read"),
    "a tensor of 2**62 rows": (entry(shape=[2**62]), REFUSED, "cannot be read"),
    "a tensor of an unknown type": (entry(dtype="F1"), REFUSED, "cannot be read"),
    "a tensor at a fraction": (entry(data_offsets=[0.5, 12.5]), REFUSED, "cannot be read"),
    "a header of a list": (header(lambda top: [top]), REFUSED, ""),
    "a header without a kind": (
        header(lambda top: {name: top[name] for name in top if name[0] != "_"}),
        REFUSED,
        "not a file",
    ),
    "a header of a hundred thousand names": (
        header(lambda top: top | {f"x{n}": EMPTY for n in range(10**5)}),
        REFUSED,
        "",
    ),
}
