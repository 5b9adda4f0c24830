//! Test support: packet builders, program test runs, and the namespace fabric.

pub mod cloud;
pub mod cluster;
pub mod cri;
pub mod fabric;
pub mod fuzz;
pub mod interpreter;
pub mod interrupt;
pub mod kubernetes;
pub mod live;
pub mod model;
pub mod packet;
pub mod path_cost;
pub mod random;
pub mod raw;
pub mod testrun;
pub mod verifier;
