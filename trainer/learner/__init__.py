"""What the gradient needs: batch, advantages, losses, DeepSpeed."""
