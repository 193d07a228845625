"""The programs that jobs run: `python -m workloads.programs.NAME`."""
