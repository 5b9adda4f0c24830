//! Towpath's eBPF programs: entry points only. Each hands its packet to the module of its name,
//! and what comes back to [`finish`].
#![cfg_attr(target_arch = "bpf", no_std, no_main, feature(asm_experimental_arch))]
#![expect(
    clippy::inline_always,
    reason = "packet and map pointers must not cross a call: the verifier would lose their bounds"
)]

mod base;
mod cache;
mod nat;
mod packet;
mod path;
mod policy;
mod programs;
mod scratch;

use aya_ebpf::bindings::{TC_ACT_REDIRECT, TC_ACT_UNSPEC};
use aya_ebpf::macros::classifier;
use aya_ebpf::programs::TcContext;
use datapath_common::counter::Program;

use crate::base::code::Code;
use crate::cache::Answer;
use crate::packet::Packet;
use crate::programs::finish::finish;
use crate::programs::{from_endpoint, from_network, reaper, to_endpoint, to_network};

/// Packets that a pod sends: TC ingress of the host-side device of an endpoint.
#[classifier]
fn from_endpoint(ctx: TcContext) -> i32 {
    let mut packet = Packet::new(ctx);
    let code = match cache::serve(Program::FromEndpoint, &mut packet) {
        Answer::Redirected => return TC_ACT_REDIRECT,
        Answer::Dropped(code) => code,
        Answer::NotServed => Code::of(from_endpoint::run(&mut packet)),
    };
    cache::keep(Program::FromEndpoint, code);
    finish(Program::FromEndpoint, &packet, code)
}

/// Packets that the VPC delivers: TC ingress of an ENI.
#[classifier]
fn from_network(ctx: TcContext) -> i32 {
    let mut packet = Packet::new(ctx);
    let code = match cache::serve(Program::FromNetwork, &mut packet) {
        Answer::Redirected => return TC_ACT_REDIRECT,
        Answer::Dropped(code) => code,
        Answer::NotServed => Code::of(from_network::run(&mut packet)),
    };
    cache::keep(Program::FromNetwork, code);
    finish(Program::FromNetwork, &packet, code)
}

/// Packets that the stack sends to the VPC: TC egress of an ENI.
#[classifier]
fn to_network(ctx: TcContext) -> i32 {
    let mut packet = Packet::new(ctx);
    // The program that redirected a packet here has counted it.
    if packet.is_done() {
        return TC_ACT_UNSPEC;
    }
    let code = Code::of(to_network::run(&mut packet));
    finish(Program::ToNetwork, &packet, code)
}

/// Packets that the stack sends to a pod: TC egress of the host-side device of an endpoint.
#[classifier]
fn to_endpoint(ctx: TcContext) -> i32 {
    let mut packet = Packet::new(ctx);
    let code = Code::of(to_endpoint::run(&mut packet));
    finish(Program::ToEndpoint, &packet, code)
}

/// Removes flows that user space found idle: run from there, attached nowhere.
#[classifier]
fn reaper(ctx: TcContext) -> i32 {
    reaper::run(&Packet::new(ctx))
}

/// The kernel lends `redirect_neigh` and others to programs of a GPL-compatible licence only.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

// A panic that could be reached would end in this loop, which the verifier refuses to load.
#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

// On the host the crate is only checked.
#[cfg(not(target_arch = "bpf"))]
fn main() {}
