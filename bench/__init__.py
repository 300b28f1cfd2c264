"""Measures plain decoding and speculation side by side, on the same prompts."""
