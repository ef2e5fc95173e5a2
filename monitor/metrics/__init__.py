"""Every metric by name, and where they are told: Prometheus, TensorBoard, Weights & Biases."""
