"""The pages, figures and numbers of the documentation equal those of the packed results."""
