"""`python -m fragility_paper run ...`: the study's commands where the packages are on the path but not installed."""

from fragility_paper.commands.study import app

if __name__ == "__main__":
    app()
