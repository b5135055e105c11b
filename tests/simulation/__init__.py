"""A job in one thread, on a clock that only the simulator moves: the production machines, everything else imagined.

world      the clock, the nodes and what faults do to them
network    links on which messages go straight from machine to machine
driven     links of the production drivers, on threads that are greenlets (threads), to a store with one of two
           faces (faces; tcpstore, etcd)
pretend    what production modules find instead of the world outside; copies: of frozen values, made fast
workers    processes that run, fail, linger and refuse to die
invariants what must hold, a sentence each; checked by checkers, rounds, hearing, pacing,
           outcomes, exits and liveness
sometimes  what must be come across
plan       a seed becomes a job and its faults (faults), all of it data
run        play seeds, make failures small; `python -m tests.simulation --seed 7` replays one with its trace
campaign   many seeds on all cores
mutants    bugs that must be found
script     verbs of the golden stories
"""
