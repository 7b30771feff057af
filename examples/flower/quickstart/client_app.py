"""The client: it trains on its own digits and sends the weights unchanged, with noise, or masked."""

import functools

import torch
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod

from leakgauge.federation.recording.flower import Recorder
from leakgauge.federation.recording.flower_keeper import Keeper
from quickstart.task import DATA, Net, client_data, train

# An example without a guarantee: a hundredth of the noise that this epsilon needs at this clipping norm
# (sensitivity=1.0).
local_dp = LocalDpMod(clipping_norm=1.0, sensitivity=0.01, epsilon=1.0, delta=1e-5)


recorder = functools.cache(lambda folder: Recorder(folder, model=Net(), data=DATA))


keeper = functools.cache(lambda folder: Keeper(folder, data=DATA))


def record(message, context, call_next):
    """Record what leaves this client, if the run's configuration names a folder for it."""
    folder = context.run_config["own-captures"]
    return recorder(folder).mod(message, context, call_next) if folder else call_next(message, context)


def keep(message, context, call_next):
    """Store the samples in the order of the training, if the run's configuration names a folder for them."""
    folder = context.run_config["kept"]
    return keeper(folder).mod(message, context, call_next) if folder else call_next(message, context)


def protect(message, context, call_next):
    """Apply Flower's own local differential privacy, if privacy is "dp"."""
    return (
        local_dp(message, context, call_next) if context.run_config["privacy"] == "dp" else call_next(message, context)
    )


app = ClientApp()


@app.train(mods=[record, keep, protect])
def train_message(message, context):
    if context.run_config["privacy"] == "secagg":
        return masked(message, context)
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loss, samples = fit(model, context)
    metrics = {"train-loss": loss, "num-examples": samples, "partition-id": context.node_config["partition-id"]}
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)})
    return FlowerMessage(content=content, reply_to=message)


def fit(model, context):
    """Train on this client's digits."""
    settings = context.run_config
    data = client_data(context.node_config["partition-id"], settings["samples-a-client"])
    torch.manual_seed(context.node_config["partition-id"])
    watch = keeper(settings["kept"]).watch if settings["kept"] else iter
    recipe = {"lr": settings["lr"], "epochs": settings["local-epochs"], "batch_size": settings["batch-size"]}
    loss = train(model, data, **recipe, watch=watch)
    return loss, len(data)


class MaskedClient(NumPyClient):
    """The same client in Flower's older API, which SecAgg+ needs."""

    def __init__(self, context):
        self.context = context

    def fit(self, parameters, config):
        """Train from these weights."""
        model = Net()
        names = model.state_dict().keys()
        model.load_state_dict(dict(zip(names, map(torch.from_numpy, parameters), strict=True)))
        _, samples = fit(model, self.context)
        return [value.numpy() for value in model.state_dict().values()], samples, {}


masked = ClientApp(client_fn=lambda context: MaskedClient(context).to_client(), mods=[secaggplus_mod])
