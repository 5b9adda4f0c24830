//! What is ours.
