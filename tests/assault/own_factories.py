"""Factories of a user, of models, data and losses. Most of them are wrong. This file is copied and then named in TOML."""

import threading
import time

import torch
from torch import nn

import leakgauge as lg


class Small(nn.Module):
    def __init__(self, shape=(5,), classes=3):
        super().__init__()
        self.body = nn.Linear(int(torch.tensor(shape).prod()), 6)
        self.head = nn.Linear(6, classes)

    def forward(self, inputs):
        return self.head(torch.sigmoid(self.body(inputs.flatten(1))))


def small(shape=(5,), classes=3):
    return Small(shape, classes)


def changed(**changes):
    """Return a factory of a small model whose class has other methods."""

    def factory(shape=(5,), classes=3):
        return type("Changed", (Small,), changes)(shape, classes)

    return factory


# What a factory returns or raises.
def returns_none(): return None
def returns_number(): return 3
def returns_class(): return Small
def returns_tensor(): return torch.zeros(3)
def returns_pair(): return Small(), 3
def returns_state(): return Small().state_dict()
def returns_text(): return "lenet"
def returns_list(): return nn.ModuleList([Small()])
def raises_value(): raise ValueError("no weights here")
def raises_key(): raise KeyError("weights")
def raises_nothing_said(): raise RuntimeError
def raises_assertion(): raise AssertionError
def raises_stop(): raise StopIteration
def raises_many_lines(): raise ValueError("first line\nsecond line\nthird line")
def raises_control(): raise ValueError("\x1b[2J\x1b]0;title\x07 red")
def raises_long(): raise ValueError("x" * 100_000)
def raises_memory(): raise MemoryError
def recurses(): return recurses()
def needs_option(width): return Small()
def needs_positional(width, /): return Small()
def generator():
    yield Small()
async def asynchronous(): return Small()
not_callable = 3
instance = Small()


# Models that cannot be trained, or not attacked.
def no_parameters(): return nn.Flatten()
def frozen(shape=(5,), classes=3): return Small(shape, classes).requires_grad_(False)
def lazy(classes=3): return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes))
def meta(shape=(5,), classes=3): return Small(shape, classes).to("meta")
def half(shape=(5,), classes=3): return Small(shape, classes).half()
def brain(shape=(5,), classes=3): return Small(shape, classes).bfloat16()
def complex_weights(shape=(5,), classes=3): return Small(shape, classes).to(torch.complex64)
def double(shape=(5,), classes=3): return Small(shape, classes).double()
def mixed_types(shape=(5,), classes=3):
    model = Small(shape, classes)
    model.head.double()
    return model
def some_meta(shape=(5,), classes=3):
    model = Small(shape, classes)
    model.head.to("meta")
    return model
def quantised(shape=(5,), classes=3):
    return torch.ao.quantization.quantize_dynamic(Small(shape, classes), {nn.Linear})
def not_a_number(shape=(5,), classes=3):
    model = Small(shape, classes)
    nn.init.constant_(model.body.weight, float("nan"))
    return model
def infinite(shape=(5,), classes=3):
    model = Small(shape, classes)
    nn.init.constant_(model.head.bias, float("inf"))
    return model
def nan_buffer(shape=(5,), classes=3):
    model = Small(shape, classes)
    model.register_buffer("offset", torch.tensor(float("nan")))
    return model
def zeros(shape=(5,), classes=3):
    model = Small(shape, classes)
    for value in model.parameters():
        nn.init.zeros_(value)
    return model
def too_few_outputs(shape=(5,)): return Small(shape, 2)
def too_many_outputs(shape=(5,)): return Small(shape, 7)
def wrong_shape(classes=3): return Small((9,), classes)
def convolution(classes=3): return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.LazyLinear(classes))
def embedding(classes=3): return nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(20, classes))
def with_lock(shape=(5,), classes=3):
    model = Small(shape, classes)
    model.lock = threading.Lock()
    return model
def scripted(shape=(5,), classes=3): return torch.jit.trace(Small(shape, classes), torch.zeros(1, *shape))
def recurrent(classes=3): return nn.LSTM(5, classes)
def sparse_gradient(classes=3): return nn.Sequential(nn.Flatten(), nn.EmbeddingBag(9, classes, sparse=True))


# What a forward pass returns or raises.
def _fails(problem):
    def forward(self, inputs):
        raise problem

    return forward


plain = Small.forward
forward_none = changed(forward=lambda self, inputs: None)
forward_tuple = changed(forward=lambda self, inputs: (plain(self, inputs), 1))
forward_dictionary = changed(forward=lambda self, inputs: {"logits": plain(self, inputs)})
forward_list = changed(forward=lambda self, inputs: [plain(self, inputs)])
forward_number = changed(forward=lambda self, inputs: 3.0)
forward_array = changed(forward=lambda self, inputs: plain(self, inputs).detach().numpy())
forward_scalar = changed(forward=lambda self, inputs: plain(self, inputs).mean())
forward_one_row = changed(forward=lambda self, inputs: plain(self, inputs)[:1])
forward_no_batch = changed(forward=lambda self, inputs: plain(self, inputs).mean(0))
forward_pictures = changed(forward=lambda self, inputs: plain(self, inputs)[:, :, None, None].expand(-1, -1, 4, 4))
forward_integers = changed(forward=lambda self, inputs: plain(self, inputs).argmax(1, keepdim=True).expand(-1, 3))
forward_complex = changed(forward=lambda self, inputs: plain(self, inputs) * 1j)
forward_half = changed(forward=lambda self, inputs: plain(self, inputs).half())
forward_nan = changed(forward=lambda self, inputs: plain(self, inputs) * float("nan"))
forward_infinite = changed(forward=lambda self, inputs: plain(self, inputs) + float("inf"))
forward_detached = changed(forward=lambda self, inputs: plain(self, inputs).detach())
forward_no_grad = changed(forward=torch.no_grad()(lambda self, inputs: plain(self, inputs)))
forward_inference = changed(forward=torch.inference_mode()(lambda self, inputs: plain(self, inputs)))
forward_constant = changed(forward=lambda self, inputs: torch.zeros(len(inputs), 3))
forward_in_place = changed(forward=lambda self, inputs: plain(self, inputs.mul_(0.5)))
forward_in_place_weights = changed(forward=lambda self, inputs: (self.head.weight.mul_(0.5), plain(self, inputs))[1])
forward_two_arguments = changed(forward=lambda self, inputs, mask: plain(self, inputs))
forward_no_arguments = changed(forward=lambda self: None)
forward_raises_value = changed(forward=_fails(ValueError("bad shape")))
forward_raises_key = changed(forward=_fails(KeyError("features")))
forward_raises_assertion = changed(forward=_fails(AssertionError()))
forward_raises_stop = changed(forward=_fails(StopIteration()))
forward_raises_zero = changed(forward=_fails(ZeroDivisionError("division by zero")))
forward_raises_lines = changed(forward=_fails(RuntimeError("one\ntwo\nthree\nfour")))
forward_not_implemented = changed(forward=_fails(NotImplementedError()))
forward_recurses = changed(forward=lambda self, inputs: self(inputs))
forward_numpy = changed(forward=lambda self, inputs: torch.from_numpy(plain(self, inputs).detach().numpy()))
forward_only_single = changed(forward=lambda self, inputs: plain(self, inputs) if len(inputs) == 1 else 1 / 0)
forward_only_eval = changed(forward=lambda self, inputs: {}["x"] if self.training else plain(self, inputs))
forward_only_first = changed(forward=lambda self, inputs: plain(self, inputs) if inputs.grad_fn is None else inputs.numpy())
forward_random = changed(forward=lambda self, inputs: plain(self, inputs) * torch.rand(()))
shows_badly = changed(__repr__=_fails(ValueError("no name")))
copies_badly = changed(__deepcopy__=lambda self, memo: {}["copy"])
state_fails = changed(state_dict=lambda self, *values, **named: {}["state"])
names_fail = changed(named_parameters=lambda self, *values, **named: {}["names"])
train_fails = changed(train=lambda self, mode=True: {}["mode"])


# Data of a user.
def _data(inputs=None, targets=None, shape=(5,), classes=3, **named):
    inputs = torch.rand(60, 5) if inputs is None else inputs
    targets = torch.arange(60) % 3 if targets is None else targets
    named = {"bounded": False} | named
    return lg.Dataset(inputs, targets, lg.DataSpec(shape, classes, **named))


def data_good(): return _data()
def data_none(): return None
def data_pair(): return torch.rand(60, 5), torch.arange(60) % 3
def data_list(): return [_data()]
def data_class(): return lg.Dataset
def data_tensors(): return torch.utils.data.TensorDataset(torch.rand(60, 5), torch.arange(60) % 3)
def data_raises(): raise FileNotFoundError("no such folder: /data")
def data_raises_key(): raise KeyError("split")
def data_raises_type(): raise TypeError("unsupported operand")
def data_raises_nothing_said(): raise OSError
def data_recurses(): return data_recurses()
def data_needs(size): return _data()
def data_empty(): return _data(torch.rand(0, 5), torch.zeros(0, dtype=torch.long))
def data_one(): return _data(torch.rand(1, 5), torch.zeros(1, dtype=torch.long))
def data_integers(): return _data(torch.ones(60, 5, dtype=torch.long))
def data_complex(): return _data(torch.rand(60, 5) * 1j)
def data_half(): return _data(torch.rand(60, 5).half())
def data_double(): return _data(torch.rand(60, 5).double())
def data_bool(): return _data(torch.rand(60, 5) > 0.5)
def data_meta(): return _data(torch.rand(60, 5, device="meta"))
def data_sparse(): return _data(torch.eye(60, 5).to_sparse())
def data_with_gradient(): return _data(torch.rand(60, 5, requires_grad=True))
def data_array(): return _data(torch.rand(60, 5).numpy())
def data_array_targets(): return _data(targets=(torch.arange(60) % 3).numpy())
def data_list_inputs(): return _data([[1.0] * 5] * 60)
def data_nan(): return _data(torch.full((60, 5), float("nan")))
def data_infinite(): return _data(torch.full((60, 5), float("inf")))
def data_nan_targets(): return _data(targets=torch.full((60,), float("nan")), classes=None)
def data_infinite_targets(): return _data(targets=torch.full((60,), float("inf")), classes=None)
def data_complex_targets(): return _data(targets=torch.zeros(60) * 1j, classes=None)
def data_float_labels(): return _data(targets=torch.zeros(60))
def data_bool_labels(): return _data(targets=torch.arange(60) % 2 == 0, classes=2)
def data_small_labels(): return _data(targets=(torch.arange(60) % 3).to(torch.uint8))
def data_negative_labels(): return _data(targets=torch.arange(60) % 3 - 1)
def data_large_labels(): return _data(targets=torch.arange(60))
def data_two_targets(): return _data(targets=torch.zeros(60, 2, dtype=torch.long))
def data_no_targets(): return _data(targets=torch.zeros(60, 0, dtype=torch.long))
def data_scalar_targets(): return _data(targets=torch.tensor(1))
def data_meta_targets(): return _data(targets=torch.zeros(60, dtype=torch.long, device="meta"))
def data_few_targets(): return _data(targets=torch.zeros(50, dtype=torch.long))
def data_wrong_shape(): return _data(shape=(6,))
def data_zero_std(): return _data(std=(0.0,))
def data_nan_mean(): return _data(mean=(float("nan"),))
def data_tiny_std(): return _data(std=(1e-300,))
def data_one_class(): return _data(targets=torch.zeros(60, dtype=torch.long), classes=1)
def data_scalar_samples(): return _data(torch.rand(60), shape=())
def data_classes_text(): return _data(classes="3")
def data_columns(): return _data(columns=("a", "b"))
def data_many_classes(): return _data(classes=10**9)
def data_sleeps():
    time.sleep(1e9)
data_constant = 3


# Losses of a user.
def _mean(outputs, targets): return nn.functional.cross_entropy(outputs, targets)
def loss_good(outputs, targets): return _mean(outputs, targets)
def loss_none(outputs, targets): return None
def loss_number(outputs, targets): return 3.0
def loss_tuple(outputs, targets): return _mean(outputs, targets), 1
def loss_vector(outputs, targets): return nn.functional.cross_entropy(outputs, targets, reduction="none")
def loss_detached(outputs, targets): return _mean(outputs, targets).detach()
def loss_item(outputs, targets): return torch.tensor(_mean(outputs, targets).item())
def loss_nan(outputs, targets): return _mean(outputs, targets) * float("nan")
def loss_infinite(outputs, targets): return _mean(outputs, targets) * float("inf")
def loss_complex(outputs, targets): return _mean(outputs, targets) * 1j
def loss_raises(outputs, targets): raise ValueError("no such target")
def loss_raises_key(outputs, targets): raise KeyError("mask")
def loss_raises_nothing_said(outputs, targets): raise AssertionError
def loss_recurses(outputs, targets): return loss_recurses(outputs, targets)
def loss_no_arguments(): return 0.0
def loss_one_argument(outputs): return outputs.mean()
def loss_four_arguments(model, inputs, targets, weights): return outputs.mean()
def loss_of_model(model, inputs, targets): return model(inputs).logits
def loss_integer(outputs, targets): return targets.sum()
def loss_half(outputs, targets): return _mean(outputs, targets).half()
loss_constant = 3
