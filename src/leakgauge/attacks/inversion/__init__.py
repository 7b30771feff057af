"""Building blocks of gradient inversion attacks, such as objectives, priors and optimisers, which can be combined."""
