//! The fuzz run: the programs against the reference model.

use std::env;
use std::thread;

use anyhow::{Context as _, Result};
use bpf_tests::fuzz::{Failure, Fuzzer, Outcomes, PACKETS, make_devices};
use testkit::testrun::private_namespace;

/// Where ordinary runs begin.
const FIRST: u64 = 0x746f_7770_6174_6800;
/// Threads, each with maps of its own.
const THREADS: u64 = 2;
/// Packets of an ordinary run and of a full one.
const SHORT: u64 = 200_000;
const FULL: u64 = 10_000_000;
/// Environment variable that repeats one batch alone: `TOWPATH_FUZZ_SEED=0x... cargo test ...
/// fuzz`.
const SEED: &str = "TOWPATH_FUZZ_SEED";

/// The requested seed.
fn requested_seed() -> Result<Option<u64>> {
    let Ok(text) = env::var(SEED) else {
        return Ok(None);
    };
    let digits = text.trim_start_matches("0x");
    let seed = u64::from_str_radix(digits, 16);
    Ok(Some(seed.with_context(|| format!("{SEED} is {text:?}"))?))
}

/// Runs batches on a thread of its own; gives the outcomes, or what is wrong.
fn run(seeds: impl Iterator<Item = u64>) -> Result<Result<Outcomes, Failure>> {
    private_namespace()?;
    make_devices()?;
    let mut fuzzer = Fuzzer::new(loader::bpf::OBJECT.to_vec(), None);
    for seed in seeds {
        if let Some(failure) = fuzzer.run(seed)? {
            return Ok(Err(failure));
        }
    }
    fuzzer.finish()?;
    Ok(Ok(fuzzer.outcomes))
}

#[test]
fn programs_do_what_the_model_says() {
    if let Some(seed) = requested_seed().unwrap() {
        if let Err(failure) = run(std::iter::once(seed)).unwrap() {
            panic!("{failure}");
        }
        return;
    }
    let packets = if env::var_os("TOWPATH_FULL").is_some() {
        FULL
    } else {
        SHORT
    };
    let batches = packets.div_ceil(THREADS * PACKETS as u64);
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let first = FIRST + (thread << 32);
            thread::spawn(move || run(first..first + batches))
        })
        .collect();
    let mut outcomes = Outcomes::new();
    let mut failures = Vec::new();
    for thread in threads {
        match thread.join().unwrap().unwrap() {
            Ok(some) => {
                for (key, times) in some {
                    *outcomes.entry(key).or_insert(0) += times;
                }
            }
            Err(failure) => failures.push(failure.to_string()),
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let packets: u64 = outcomes.values().sum();
    println!("{packets} packets were counted:");
    for ((program, outcome), times) in outcomes {
        println!("{:14} {:24} {times}", program.name(), outcome.name());
    }
}
