"""HTTP in front of an EngineService: requests in, durable jobs, files and events out. Knows no model."""
