"""The page of a job: one file of HTML, which `--page` serves live and `elasticctl report` writes of a finished job.

Imports `control`, `control/service`, `agent`; loaded only where the page is asked for.
"""
