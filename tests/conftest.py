import signal

import torch

# Tests run in several processes, one a core: more threads in each would only wait for each other.
torch.set_num_threads(1)
# What a shell starts in the background ignores Ctrl-C, and so would the programs that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
