"""The orchestrator's ends of the links: one per worker, and the pool that places sessions."""
