"""Check that the pages, figures and numbers of the documentation agree with the packed results."""
