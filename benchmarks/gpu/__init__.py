"""What the kernels cost on a GPU: compiled without one, measured on one."""
