"""The verifier: the target model, and the rules that keep its law."""
