"""Temperature near the ground over central Europe: patches in space and time, synthetic or from the user's netCDF."""
