"""Training scripts that are killed and started again, and what they saw."""
