"""Real regression tables, and the files they come in."""

from iclbench.moved import handed_on

# The names of version 0.1.0, whose families.tabular was a module.
__getattr__ = handed_on(__name__, "iclbench.families.tabular.tabular")
