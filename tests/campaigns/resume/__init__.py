"""Whether a run that is killed and resized trains as one that is not: on random schedules, in process and for real."""
