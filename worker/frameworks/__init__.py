"""What other libraries' loops need to resume exactly: one module for each, imported only by who uses it.

`switch` reads the variable of `--exact-resume`; `driven` is a run whose loops belong to a framework. Imports the rest
of `worker`, and a framework only in the module that is named after it.
"""
