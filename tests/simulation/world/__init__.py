"""One simulated job: its numbers (job), what makes it harder (conditions), the clock and the nodes (world), an agent
with the production machine in it (node), the coordinator machine of a node (coordinator), its workers (workers), and
what takes the place of names in production modules while a world runs (substitution, fast_replace), or is made faster
in campaigns (fast_values). May import stores and checks."""
