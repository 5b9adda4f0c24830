//! Desired state: what the intent comes to on this kernel.
