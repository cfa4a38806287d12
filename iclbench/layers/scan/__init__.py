"""Mamba's selective scan: one interface, three implementations."""
