//! Devices: virtio-mmio transport, the multi-port console, and what the host says over it.
