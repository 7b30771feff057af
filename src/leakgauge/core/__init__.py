"""What every room shares: observations, the truth, measures, errors, and small tools."""
