"""Elections of a store's host among many nodes, with deaths, cuts and freezes: one thread, a fake clock, one seed."""
