//! Translation at its limits: every port of a destination, full maps, quotas, and packets that race
//! with each other, with the reaper and with the sweeper.
#![cfg(test)]

mod costs;
mod displaced;
mod exhaustion;
mod fairness;
mod frames;
mod inbound;
mod lifetimes;
mod limits;
mod loaded;
mod node;
mod phases;
mod races;
mod rooms;
mod survival;
mod sweeps;
mod world;
