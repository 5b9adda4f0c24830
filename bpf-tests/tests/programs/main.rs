//! Program tests: every branch, verdict and drop reason of the programs, all output bytes, and
//! that nothing but the expected counter moves.
#![cfg(test)]

mod adversary_nat;
mod cache;
mod case;
mod coverage;
mod explained;
mod faults;
mod fragments;
mod from_endpoint;
mod from_network;
mod fuzz;
mod gateway;
mod host;
mod hostile;
mod inbound_notes;
mod interpreted;
mod layout;
mod leaving;
mod limits;
mod nat;
mod neighbour_discovery;
mod path;
mod reuse;
mod size;
mod stack_flows;
mod stack_notes;
mod taken;
mod wire;
mod world;
