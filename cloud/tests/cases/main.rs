//! The library from the outside: what a caller meets.

mod table;
mod vectors;
