"""Write the samples of each client of the example, for scoring: client_data.py FOLDER [CLIENTS [SAMPLES]]."""

import sys
from pathlib import Path

import numpy as np
from quickstart.task import client_data

folder, clients, samples = Path(sys.argv[1]), *(int(word) for word in (*sys.argv[2:], 10, 4)[:2])
folder.mkdir(parents=True, exist_ok=True)
for partition in range(clients):
    data = client_data(partition, samples)
    np.savez(folder / f"{data.name}.npz", x=data.inputs.numpy(), y=data.targets.numpy())
print(f"{clients} clients' samples are in {folder}")
