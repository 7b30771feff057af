import torch

# Tests run in several processes, one a core: more threads in each would only wait for each other.
torch.set_num_threads(1)
