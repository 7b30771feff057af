"""The published attacks, one paper in each file, each a short composition of parts."""
