"""Everything is in setup.cfg; this file is for build front-ends that look for it."""

from setuptools import setup

setup()
