"""`python -m benchmarks.zoo`: the same as `jspec bench zoo`."""

import typer

from benchmarks.zoo.command import zoo

if __name__ == "__main__":
    typer.run(zoo)
