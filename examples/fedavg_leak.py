"""Rebuild a client's ten digits from the weights it returns after five local epochs.

Run ``python examples/fedavg_leak.py``. It takes about a minute and writes fedavg_leak.png.
"""

import leakgauge as lg
from leakgauge.reports import contact_sheet

# The client trains on ten handwritten digits for five epochs, in batches of five, each epoch in a new order.
client = lg.data.iid(lg.data.load("mnist5k"), clients=500, seed=0)[0]
model = lg.models.build("dlf_femnist", classes=10, seed=0)
observation, truth = lg.fedavg(model, client, lr=0.004, epochs=5, batch_size=5)

# The server has the weights it sent and the weights that came back. It simulates the client's training on dummy
# samples, and changes them until they lead to the same weights.
result = lg.attacks.dlf()(observation)

# The audit prints the threat model, the score, and its chance level.
print(*observation.threat_model(), sep="\n")
score = lg.score(result, truth)
print(score)

rebuilt = score.pairing.apply(result.samples)
picture = contact_sheet({"the client's": truth.inputs, "the server's": rebuilt}, size=72, columns=10)
picture.save("fedavg_leak.png")
