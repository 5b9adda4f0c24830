//! The library from the outside: what a caller meets.

mod bindings;
mod blocks;
mod kinds;
mod leases;
mod properties;
mod restart;
mod support;
mod table;
mod vectors;
