"""Bugs that the invariants must find: the list of them (catalogue), the words in which it names a place in a function
and what changes there (syntax), and planting and searching (planting). May import all of tests/simulation."""
