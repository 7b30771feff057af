"""Federated averaging in NVFlare's simulator, recorded on the server: job.py [SITES [ROUNDS [WORKSPACE]]]."""

import sys

from model import Net
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv

import leakgauge as lg
from leakgauge.federation.recording.nvflare import ServerRecorder


def main():
    sites, rounds = (int(word) for word in (*sys.argv[1:3], "2", "2")[:2])
    workspace = {"workspace_root": sys.argv[3]} if len(sys.argv) > 3 else {}
    recipe = FedAvgRecipe(
        name="recorded-digits", model=Net(), min_clients=sites, num_rounds=rounds, train_script="client.py"
    )
    data = lg.DataSpec((1, 28, 28), classes=10, mean=(0.5,), std=(0.5,))
    known = {"lr": 0.05, "epochs": 2, "batch_size": 4, "samples": 8, "optimiser": "sgd", "momentum": 0.0}
    recorder = ServerRecorder("captures", model="model.Net", data=data, training=known)
    recipe.add_server_input_filter(recorder, tasks=["train"])
    print(recipe.execute(SimEnv(num_clients=sites, **workspace)).get_result())


if __name__ == "__main__":
    main()
