"""Bugs that the invariants must find: the list of them (catalogue), those that escape (escapes), how it names a place
in a function and what changes there (syntax; tree is what it needs of `ast`), planting them (planting) and playing
seeds until one is found (search). May import all of tests/simulation."""
