"""Everything on disk that is not a table: run folders, archives of weights, and the identities of results."""
