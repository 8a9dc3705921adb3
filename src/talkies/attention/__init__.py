"""How rows meet: the attend contract, its documents, and one table of backends."""
