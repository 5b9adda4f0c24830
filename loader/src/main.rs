//! Towpath.
fn main() {}
