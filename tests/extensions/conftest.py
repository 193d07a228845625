"""The lab that plans with attachments are read for."""

from tests.plan.conftest import lab

__all__ = ["lab"]
