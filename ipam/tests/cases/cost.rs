//! What an address costs: nothing that grows with how many are in use.

use std::time::{Duration, Instant};

use super::support::*;

/// Most that one may cost with thousands in use, in a build without optimisation on a busy machine.
const LIMIT: Duration = Duration::from_millis(1);
/// How many times more it may cost then than with a few. A look at every lease is two hundred times.
const FACTOR: u32 = 8;
/// How many are measured; half of them may be held up by others on the machine.
const TIMES: usize = 201;

/// What an ADD costs the allocator, and the look at the time before it.
fn cost(in_use: usize) -> Duration {
    let blocks: Vec<_> = (0..in_use.div_ceil(16) + TIMES.div_ceil(16))
        .map(|n| {
            on(
                "eni-1",
                "default",
                &format!("10.{}.{}.{}/28", n >> 12, (n >> 4) & 255, (n & 15) << 4),
            )
        })
        .collect();
    let mut allocator = ready(&blocks);
    for n in 0..in_use {
        get(&mut allocator, &format!("pod-{n}"), 0).unwrap();
        allocator.claim(&owner(&format!("pod-{n}"))).unwrap();
    }
    let mut costs: Vec<_> = (0..TIMES)
        .map(|n| {
            let request = any(&format!("new-{n}"), "default", V4);
            let begun = Instant::now();
            pass(&mut allocator, 1);
            allocator.allocate(&request, at(1)).unwrap();
            allocator.claim(&request.owner).unwrap();
            begun.elapsed()
        })
        .collect();
    costs.sort_unstable();
    costs[TIMES / 2]
}

#[test]
fn an_address_costs_the_same_however_many_are_in_use() {
    let (few, many) = (cost(16), cost(4096));
    println!("with 16 in use {few:?}, with 4,096 in use {many:?}");
    assert!(many < LIMIT && many < few * FACTOR, "{many:?}, {few:?}");
}
