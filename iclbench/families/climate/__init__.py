"""Near-surface temperature over central Europe: patches in space and time, synthetic or from netCDF files."""
