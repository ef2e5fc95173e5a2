"""Analysis of a model's attention rhythm on any text: curves, maps, couplings, perturbation: ``rollcage rhythm``."""
