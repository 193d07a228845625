"""What every rank imports; see forked.py."""

from workloads.programs import program as program
from workloads.training import eager
from workloads.training import models as models

eager.import_torch()
