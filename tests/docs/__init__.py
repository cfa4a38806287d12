"""The pages, figures and numbers of the documentation are those of the packed results."""
