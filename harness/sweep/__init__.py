"""An interleaved sweep, without Hydra: its order, its jobs, what is there already, and what a person is shown."""
