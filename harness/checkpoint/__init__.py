"""Checkpoints in Hugging Face safetensors, looked at from outside: ``python -m harness.checkpoint``."""
