"""Vega-Lite specifications, built with altair from tidy frames."""
