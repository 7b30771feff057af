"""Recorders of NVFlare jobs, on the server's side or on a client's side.

::

    import leakgauge as lg
    from leakgauge.federation.recording.nvflare import ServerRecorder

    data = lg.DataSpec((3, 32, 32), classes=10, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))  # as the app normalises
    recorder = ServerRecorder("captures", model="model.Net", data=data, training={"lr": 0.01, "batch_size": 32})
    recipe.add_server_input_filter(recorder, tasks=["train"])  # sees what the server sends and what it gets

A recorder is a filter that changes nothing. :class:`ServerRecorder` sees the tasks as they leave the server, after all
of its filters, and the results as they arrive, before all of its filters. :class:`ClientRecorder` is a filter of a
client's results, and its place among the others decides what it sees. Behind a privacy filter, it sees what that filter
lets through.

NVFlare stores the arguments of a filter in the job and builds the filter anew on the server. The model is therefore
named by its class, and ``data`` and ``training`` are kept as plain dictionaries.

Clients have the names of their sites, and rounds have NVFlare's numbers, which start from 0. A run has the name of its
job. NVFlare's simulator gives all jobs the same name, so that the time of the start is added to it.
"""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from leakgauge.core.errors import InvalidInput, MissingExtra, UnknownName, printable, shown
from leakgauge.core.observation import DataSpec, LocalTraining
from leakgauge.federation.recording.recorder import UNKNOWN, Captures, Exchange, check_normalisation
from leakgauge.federation.recording.states import Arrays, array_in

try:
    from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
    from nvflare.apis.event_type import EventType
    from nvflare.apis.filter import Filter
    from nvflare.apis.fl_constant import FLContextKey, ReturnCode
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import Shareable
    from nvflare.app_common.app_constant import AppConstants
except ImportError as problem:
    raise MissingExtra("recording an NVFlare job", "nvflare", "nvflare") from problem

#: The name that NVFlare's simulator gives to every job, and the variable with the time at which job.py started.
SIMULATED, STARTED = "simulate_job", "LEAKGAUGE_NVFLARE_START"
#: The largest number of tasks of which the sent weights are kept until the result arrives. Clients drop out.
MOST_TASKS = 10_000
#: The meanings of the number that clients report as the weight of their result.
WEIGHTS = (None, "steps", "samples")

# The simulator's processes are started by the process that defines the job, and inherit this time.
os.environ.setdefault(STARTED, time.strftime("%Y%m%d-%H%M%S"))


def run_name(job: str) -> str:
    """Return the name of the run of a job, which recorders and keepers of the same job share.

    Args:
        job: The id of the job.
    """
    return f"{job}-{os.environ[STARTED]}" if job == SIMULATED else job


class _Recorder(Filter):  # type: ignore[misc]
    """The parts that the recorders on both sides share.

    Args:
        folder: The folder to write to. A relative one is relative to the folder of the process.
        model: The class of the exchanged weights' architecture, such as ``"model.Net"``, or
            ``{"class_path": "model.Net", "args": {"classes": 10}}``.
        data: The shape, classes and normalisation of a sample. ``mean`` and ``std`` must be stated.
        training: The settings of the clients' training that are known, such as ``{"lr": 0.01, "epochs": 1}``.
        every: The interval between recorded rounds. The first round is always recorded.
        clients: The names of the sites to record, or their number. By default, all sites.
        weight: The meaning of ``NUM_STEPS_CURRENT_ROUND`` in a result, ``"steps"`` or ``"samples"``. Apps use it for
            both, so it is not read by default.
    """

    def __init__(
        self,
        folder: str,
        model: str | Mapping[str, Any],
        data: DataSpec | Mapping[str, Any],
        training: Mapping[str, Any] | None = None,
        every: int = 1,
        clients: Collection[str] | int | None = None,
        weight: str | None = None,
    ) -> None:
        super().__init__()
        spec = data if isinstance(data, DataSpec) else _read_data(data)
        check_normalisation(spec)
        if weight not in WEIGHTS:
            raise InvalidInput(f"weight must be 'steps', 'samples' or None, not {shown(weight)}")
        # NVFlare reads these attributes when it stores the job.
        self.folder, self.model = str(folder), model if isinstance(model, str) else dict(model)
        self.data = {name: value for name, value in asdict(spec).items() if value is not None}
        self.training = dict(training or {})
        self.every, self.weight = every, weight
        self.clients = list(clients) if isinstance(clients, (tuple, set, frozenset)) else clients
        self._captures = Captures(
            Path(folder), _built(self.model), spec, _read_training(self.training), every=every, clients=self.clients
        )
        self._first: int | None = None
        self._sent: OrderedDict[str, tuple[int, Arrays]] = OrderedDict()
        self._lock = threading.Lock()

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Return the message as it is."""
        return shareable

    def _safely(self, who: str, act: Any, *arguments: Any) -> None:
        """Call a function. An error costs one sentence in the log, and never the training."""
        try:
            act(*arguments)
        except Exception as problem:
            text = str(problem) if isinstance(problem, InvalidInput) else repr(problem)
            self._captures.warn(f"{who}: {text}", f"{who}: {printable(text)}")

    def _remember(self, task: str, who: str, data: Shareable | None, fl_ctx: FLContext) -> None:
        """Keep the weights that a client is sent until its result is there."""
        dxo = _weights(data)
        if dxo is None or data is None or not task:
            return
        number = data.get_header(AppConstants.CURRENT_ROUND, fl_ctx.get_prop(AppConstants.CURRENT_ROUND, 0))
        round = int(number or 0)
        with self._lock:
            self._first = round if self._first is None else self._first
            if not self._captures.selects(1 + max(0, round - self._first), who):
                return
            if dxo.data_kind != DataKind.WEIGHTS:
                raise InvalidInput("the server sends differences of weights, and the weights are not known")
            sent = _arrays(dxo.data)
            for _, earlier in reversed(self._sent.values()):  # most clients of a round are sent the same
                if _same(earlier, sent):
                    sent = earlier
                break
            self._sent[task] = (round, sent)
            while len(self._sent) > MOST_TASKS:
                self._sent.popitem(last=False)

    def _keep(self, task: str, who: str, result: Shareable | None, fl_ctx: FLContext) -> None:
        """Record the result of a task."""
        with self._lock:
            round, sent = self._sent.pop(task, (0, None))
        if sent is None or result is None or result.get_return_code() != ReturnCode.OK:
            return
        dxo = _weights(result)
        if dxo is None:
            raise InvalidInput("its result holds no weights")
        if dxo.get_meta_prop(MetaKey.PROCESSED_ALGORITHM):
            algorithm = printable(str(dxo.get_meta_prop(MetaKey.PROCESSED_ALGORITHM)))
            raise InvalidInput(f"its weights are encrypted or packed ({algorithm}), so nobody can read them here")
        returned = _arrays(dxo.data)
        if dxo.data_kind == DataKind.WEIGHT_DIFF:
            returned = {name: sent[name] + change if name in sent else change for name, change in returned.items()}
        reported = {**_plain(dxo.meta), **_plain(dxo.get_meta_prop(MetaKey.INITIAL_METRICS) or {})}
        number = dxo.get_meta_prop(MetaKey.NUM_STEPS_CURRENT_ROUND)
        if self.weight is not None and number is not None:
            reported["local-steps" if self.weight == "steps" else "num-examples"] = int(number)
        run = run_name(str(fl_ctx.get_job_id()))
        self._captures.keep(Exchange(run, round, who, sent, returned, reported))


class ServerRecorder(_Recorder):
    """A recorder of what an NVFlare server sends and gets. Add it with ``recipe.add_server_input_filter``.

    Args:
        folder: The folder to write to. A relative one is relative to the folder of the server's process.
        model: The class of the exchanged weights' architecture, such as ``"model.Net"``, or
            ``{"class_path": "model.Net", "args": {"classes": 10}}``.
        data: The shape, classes and normalisation of a sample. ``mean`` and ``std`` must be stated.
        training: The settings of the clients' training that are known, such as ``{"lr": 0.01, "epochs": 1}``.
        every: The interval between recorded rounds. The first round is always recorded.
        clients: The names of the sites to record, or their number. By default, all sites.
        weight: The meaning of ``NUM_STEPS_CURRENT_ROUND`` in a result, ``"steps"`` or ``"samples"``. Apps use it for
            both, so it is not read by default.
    """

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Record a task that leaves the server, or a result that arrives."""
        if event_type == EventType.AFTER_TASK_DATA_FILTER:
            who, data = _peer(fl_ctx), fl_ctx.get_prop(FLContextKey.TASK_DATA)
            self._safely(who, self._remember, _task(fl_ctx), who, data, fl_ctx)
        elif event_type == EventType.BEFORE_TASK_RESULT_FILTER:
            who, result = _peer(fl_ctx), fl_ctx.get_prop(FLContextKey.TASK_RESULT)
            self._safely(who, self._keep, _task(fl_ctx), who, result, fl_ctx)


class ClientRecorder(_Recorder):
    """A recorder of what an NVFlare client sends. Add it with ``recipe.add_client_output_filter``.

    Added after a privacy filter, it records what that filter lets through.

    Args:
        folder: The folder to write to. A relative one is relative to the folder of the client's process.
        model: The class of the exchanged weights' architecture, such as ``"model.Net"``, or
            ``{"class_path": "model.Net", "args": {"classes": 10}}``.
        data: The shape, classes and normalisation of a sample. ``mean`` and ``std`` must be stated.
        training: The settings of the clients' training that are known, such as ``{"lr": 0.01, "epochs": 1}``.
        every: The interval between recorded rounds. The first round is always recorded.
        clients: The names of the sites to record. By default, all sites.
        weight: The meaning of ``NUM_STEPS_CURRENT_ROUND`` in a result, ``"steps"`` or ``"samples"``. Apps use it for
            both, so it is not read by default.
    """

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Keep the weights of a task that the client got."""
        if event_type == EventType.AFTER_TASK_DATA_FILTER:
            who, data = str(fl_ctx.get_identity_name()), fl_ctx.get_prop(FLContextKey.TASK_DATA)
            self._safely(who, self._remember, _task(fl_ctx), who, data, fl_ctx)

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Record the result as it is at this place among the filters, and return it as it is."""
        who = str(fl_ctx.get_identity_name())
        self._safely(who, self._keep, _task(fl_ctx), who, shareable, fl_ctx)
        return shareable


def _peer(fl_ctx: FLContext) -> str:
    peer = fl_ctx.get_peer_context()
    return str(peer.get_identity_name()) if peer is not None else "a client"


def _task(fl_ctx: FLContext) -> str:
    return str(fl_ctx.get_prop(FLContextKey.TASK_ID) or "")


def _weights(message: Shareable | None) -> DXO | None:
    """Return the weights in a message, or ``None`` if it holds something else, such as metrics."""
    try:
        dxo = from_shareable(message)
    except (ValueError, AttributeError):
        return None
    return dxo if dxo.data_kind in (DataKind.WEIGHTS, DataKind.WEIGHT_DIFF) else None


def _arrays(weights: Mapping[str, Any]) -> Arrays:
    """Return weights as arrays. Weights that NVFlare left on the disk are read."""
    found = {}
    for name, value in weights.items():
        try:
            array = array_in(value.materialize() if hasattr(value, "materialize") else value)
        except Exception as problem:
            raise InvalidInput(f"the weight {shown(name)} is a {type(value).__name__} and cannot be read") from problem
        if array.dtype.kind not in "fiub":  # such as a reference to weights in the training script's own process
            raise InvalidInput(
                f"the weight {shown(name)} is a {type(value).__name__} and cannot be read here. If the training script "
                "has a process of its own, record on the server's side"
            )
        found[str(name)] = array
    return found


def _same(one: Arrays, other: Arrays) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(value, other[name]) for name, value in one.items())


def _plain(values: Mapping[Any, Any]) -> dict[str, object]:
    return {str(name): value for name, value in values.items() if isinstance(value, (int, float, str))}


def _read_data(data: Mapping[str, Any]) -> DataSpec:
    if not isinstance(data, Mapping):
        raise InvalidInput(f"data must be a DataSpec, not {shown(data)}")
    known = {item.name for item in fields(DataSpec)}
    for name in data:
        if name not in known:
            raise UnknownName("part of a DataSpec called", name, known)
    return DataSpec(**{name: _tuples(value) for name, value in data.items()})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _read_training(training: Mapping[str, Any]) -> LocalTraining:
    known = {item.name for item in fields(LocalTraining)}
    for name in training:
        if name not in known:
            raise UnknownName("part of a client's recipe called", name, known)
    unknown = {name: getattr(UNKNOWN, name) for name in known}
    return LocalTraining(**{**unknown, **{name: _tuples(value) for name, value in training.items()}})


def _built(model: str | Mapping[str, Any]) -> nn.Module:
    """Return the architecture that a class path names, which is code of the user's own job."""
    facts: Mapping[str, Any] = {"class_path": model} if isinstance(model, str) else model
    path, options = str(facts.get("class_path", "")), dict(facts.get("args") or {})
    module, _, name = path.rpartition(".")
    try:
        built = getattr(importlib.import_module(module), name)(**options)
    except (ImportError, AttributeError, ValueError, TypeError) as problem:
        raise InvalidInput(
            f"the model {shown(path)} cannot be built ({problem}). Name it as in 'model.Net'"
        ) from problem
    if not isinstance(built, nn.Module):
        raise InvalidInput(f"the model {shown(path)} is a {type(built).__name__}, not a module of PyTorch")
    return built
