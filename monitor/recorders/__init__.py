"""Recorders beside the run folder's own: several at once, TensorBoard, Weights & Biases."""
