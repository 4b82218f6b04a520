"""The paper's study: data sets, models, plan, run, tables and figures.

from fragility.study.plan import profile_named
from fragility.study.run import run_study

run_study(profile_named("smoke"), "study-smoke")
"""
