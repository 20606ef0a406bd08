"""faperf: the regression harness and performance history of a kernel that is tuned through many versions."""

__version__ = "0.1.0"
