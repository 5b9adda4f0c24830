//! Every developer command of Towpath.
fn main() {}
