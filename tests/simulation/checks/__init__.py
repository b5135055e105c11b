"""What must hold in a world: the sentences (invariants) and the code that checks them after every event (checkers, and
the modules that it calls: announcements, rounds, restarts, outcomes, exits, liveness), and which situations the runs
reached (coverage). Imports no other room at run time."""
