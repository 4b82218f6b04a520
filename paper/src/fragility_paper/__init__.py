"""The paper's study: data sets, models, plan, run, tables and figures.

from fragility_paper.plan import profile_named
from fragility_paper.run import run_study

run_study(profile_named("smoke"), "study-smoke")
"""
