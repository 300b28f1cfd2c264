"""What orchestrator and workers plan by: step times, turns, K/V reserves, tree budgets. Pure."""
