"""`InferenceService` over gRPC."""
