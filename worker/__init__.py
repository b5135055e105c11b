"""What a training script may import. Imports `proto` at most."""
