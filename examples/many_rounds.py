"""Attack four clinics that train one model on their patients for thirty rounds.

python examples/many_rounds.py        # half a minute; writes captures/, records/ and a page in inferred/
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

import leakgauge as lg
from leakgauge.reports.inference import inferences_table

# Each clinic has 60 patients. The model predicts the progression of their diabetes. The patients were distributed at
# random, so the clinics differ only in the patients they hold.
patients = lg.data.load("diabetes")
patients = replace(patients, targets=(patients.targets - patients.targets.mean()) / patients.targets.std())
clinics = [clinic.share(range(60)) for clinic in lg.data.iid(patients, clients=4, seed=0)]
model = lg.models.build("mlp", shape=[10], classes=1, hidden=[64, 64], seed=0)
federation = lg.run_federation(model, clinics, rounds=30, lr=0.05, watch=range(4), every=3)

# The server can store captures/, and an auditor also has records/. The rest of this script is the same as
# `leakgauge infer captures --data records --sensitive sex`.
Path("records").mkdir(exist_ok=True)
for place, rounds in federation.observations.items():
    lg.save_all(rounds, "captures")
    np.savez(f"records/client-{place}.npz", x=clinics[place].inputs.numpy(), y=clinics[place].targets.numpy())

inferred = lg.infer("captures", "lmra", data="records", sensitive="sex", command="python examples/many_rounds.py")
for row in inferences_table(inferred, brief=True):
    print("".join(f"{cell:<26}" for cell in row))
print(inferred.sentence())
print(inferred.page)
