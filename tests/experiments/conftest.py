"""The lab that files of scenarios and campaigns are read for."""

from tests.plan.conftest import lab

__all__ = ["lab"]
