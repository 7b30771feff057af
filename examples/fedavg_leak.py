"""Ten digits, five epochs of local training, one set of weights sent back: what does the server see?

python examples/fedavg_leak.py        # about a minute; writes fedavg_leak.png
"""

import leakgauge as lg
from leakgauge.reports import contact_sheet

# The client: ten handwritten digits, five epochs in batches of five, each epoch in a new order.
client = lg.data.iid(lg.data.load("mnist5k"), clients=500, seed=0)[0]
model = lg.models.build("dlf_femnist", classes=10, seed=0)
observation, truth = lg.fedavg(model, client, lr=0.004, epochs=5, batch_size=5)

# The server: it has the weights it sent and those that came back. It simulates the client's training on images of
# its own, and changes these until they would have caused the same weights.
result = lg.attacks.dlf()(observation)

# The audit: who the attacker is, what came back, and what guessing would have given.
print(*observation.threat_model(), sep="\n")
score = lg.score(result, truth)
print(score)

found = score.pairing.apply(result.samples)
picture = contact_sheet({"the client's": truth.inputs, "the server's": found}, size=72, columns=10)
picture.save("fedavg_leak.png")
