"""The orchestrator: clients on one side, drafters and verifiers on the other."""
