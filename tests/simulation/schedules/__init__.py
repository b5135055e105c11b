"""What happens to a job, as data: a scenario, the faults that it lists, how a seed draws it (draw), what plays it
(build), and the schedules that once led to a violation, one JSON file each in `found` (files). May import world, stores
and checks."""
