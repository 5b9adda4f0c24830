//! Program tests: every branch, verdict and drop reason of the programs, all output bytes, and
//! that nothing but the expected counter moves.
#![cfg(test)]

mod case;
mod coverage;
mod from_endpoint;
mod from_network;
mod hostile;
mod layout;
mod mutation;
mod neighbour_discovery;
mod wire;
mod world;
