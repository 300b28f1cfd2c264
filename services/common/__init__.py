"""What the workers, the orchestrator and the console share."""
