"""The basic types that all other packages use, such as observations, true samples, measures and errors."""
