//! The command line.

mod args;
mod render;
mod table;
