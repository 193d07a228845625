"""The taps of a job's shadow on a host."""

from extensions.shadow.host.tap import Taps

MECHANISMS = (Taps,)
