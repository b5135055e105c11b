"""Guards under random deadlines, and what all of them cost."""
