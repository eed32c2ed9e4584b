"""SwiGLU experts over tokens sorted by expert: NKI kernels, block table, the same in PyTorch."""
