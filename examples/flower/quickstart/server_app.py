"""The server: federated averaging that records what it gets from its clients."""

import torch
from flwr.app import ArrayRecord, ConfigRecord
from flwr.common import ndarrays_to_parameters
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg as FedAvgOfResults
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from leakgauge.federation.recording.flower import Recorder
from quickstart.task import DATA, Net

app = ServerApp()


@app.main()
def main(grid, context):
    settings = context.run_config
    torch.manual_seed(0)
    model = Net()
    recorder = Recorder(settings["captures"], model=model, data=DATA, config=settings)
    if settings["privacy"] == "secagg":
        aggregate_securely(grid, context, model, recorder)
        return
    strategy = recorder.strategy(FedAvg(fraction_evaluate=0.0))
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(model.state_dict()),
        train_config=ConfigRecord({"lr": settings["lr"]}),
        num_rounds=settings["num-server-rounds"],
    )


def aggregate_securely(grid, context, model, recorder):
    """Run the same training with SecAgg+, whose workflow needs a strategy of Flower's older API."""
    strategy = FedAvgOfResults(
        fraction_evaluate=0.0,
        initial_parameters=ndarrays_to_parameters([value.numpy() for value in model.state_dict().values()]),
    )
    legacy = LegacyContext(
        context=context,
        config=ServerConfig(num_rounds=context.run_config["num-server-rounds"]),
        strategy=recorder.strategy(strategy),
    )
    # SecAgg+ quantises by max_weight. Flower's default of 1,000 would drown the updates of small clients.
    largest = float(context.run_config["samples-a-client"])
    secagg = SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2, max_weight=largest)
    DefaultWorkflow(fit_workflow=secagg)(grid, legacy)
