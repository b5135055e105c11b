"""What befalls a job, as data: a scenario, the faults that it lists, how a seed draws one (draw), how a world plays one
(build), and the schedules that once led to a violation, one JSON file each in `found` (files). May import world, stores
and checks."""
