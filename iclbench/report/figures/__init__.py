"""Figures as Vega-Lite specifications, built with Altair from tidy frames."""
