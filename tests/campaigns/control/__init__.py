"""What asking an agent costs, and what a million mutated requests do to it."""
