"""What TorchTrainer costs, and what becomes of it when workers and nodes are killed at random: `make trainer`."""
