//! Changing the kernel, one object at a time. What is already so, or already gone, is success.

pub(super) mod addresses;
pub(super) mod links;
pub(super) mod neighbours;
pub(super) mod routes;
pub(super) mod rules;
pub(super) mod sysctls;
