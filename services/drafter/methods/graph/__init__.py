"""Drafts that are trees and graphs: what grows them, and how far."""
