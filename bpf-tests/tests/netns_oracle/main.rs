//! The kernel's own translation as oracle: sequences of packets from files go through a node that
//! translates by conntrack and through one that translates by our programs. What comes out must be
//! the same, byte by byte, but for what `docs/guide/nat.md` lists.

#![cfg(test)]
mod build;
mod canonical;
mod compare;
mod errors;
mod numbers;
mod ours;
mod play;
mod prepare;
mod sequence;
mod sequences;
mod stage;
mod stun;
mod worlds;
