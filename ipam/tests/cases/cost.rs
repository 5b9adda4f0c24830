//! Cost of an allocation, which must not grow with the number of addresses in use.

use std::time::{Duration, Instant};

use super::support::*;

/// Maximum cost with thousands in use, in a build without optimisation on a busy machine.
const LIMIT: Duration = Duration::from_millis(1);
/// Maximum ratio of the cost with thousands in use to that with a few. A scan of all leases would
/// be two hundred times as expensive.
const FACTOR: u32 = 8;
/// Number of measurements; other programs on the machine may delay half of them.
const TIMES: usize = 201;

/// Cost of the allocator for an ADD, with the update of the time before it.
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
