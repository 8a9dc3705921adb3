"""One forward of several requests: who they are together, and what their step caches leave out."""
