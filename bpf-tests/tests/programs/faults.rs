//! Check of the fuzz run itself: it must find faults that are injected into the programs, one at a
//! time.

use std::thread;

use bpf_tests::fuzz::{Fuzzer, make_devices};
use datapath_build::faults::{self, Fault};
use testkit::testrun::private_namespace;

/// Where the batches begin.
const FIRST: u64 = 0x6661_756c_7400;
/// Batches that a fault may stay hidden for: 512,000 packets. What the cache hides takes longer on
/// a busy machine, where its entries grow old between two packets.
const MOST: u64 = 2000;
/// Threads, each with maps of its own.
const THREADS: usize = 2;

/// The endianness of this machine, as the build names it.
const ENDIAN: &str = if cfg!(target_endian = "little") {
    "little"
} else {
    "big"
};

/// A fault and its number.
type Numbered = (u32, &'static Fault);

/// The batch that finds a fault, and its message.
fn find(object: &[u8], (number, fault): Numbered) -> Option<String> {
    let extra = Some((faults::GLOBAL, number));
    let mut fuzzer = Fuzzer::new(object.to_vec(), extra);
    for seed in FIRST..FIRST + MOST {
        let ran = fuzzer.run(seed);
        if let Some(failure) = ran.unwrap_or_else(|error| panic!("{}: {error:#}", fault.name)) {
            return Some(format!("after {} batches: {failure}", seed - FIRST + 1));
        }
    }
    None
}

/// Those of the faults that stay hidden.
fn hidden(object: &[u8], faults: &[Numbered]) -> Vec<&'static Fault> {
    private_namespace().unwrap();
    make_devices().unwrap();
    let mut hidden = Vec::new();
    for (number, fault) in faults {
        match find(object, (*number, fault)) {
            Some(found) => {
                println!(
                    "{} {}",
                    fault.name,
                    found.lines().next().unwrap_or_default()
                );
            }
            None => hidden.push(*fault),
        }
    }
    hidden
}

#[test]
fn every_seeded_fault_is_found() {
    let object = faults::build(std::env::consts::ARCH, ENDIAN).unwrap();
    let object = std::fs::read(object).unwrap();
    let faults: Vec<Numbered> = faults::all().collect();
    let each = faults.len().div_ceil(THREADS);
    let hidden: Vec<&Fault> = thread::scope(|scope| {
        let threads: Vec<_> = faults
            .chunks(each)
            .map(|faults| scope.spawn(|| hidden(&object, faults)))
            .collect();
        let hidden = threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap());
        hidden.collect()
    });
    assert!(faults.len() >= 20);
    assert!(hidden.is_empty(), "not found: {hidden:#?}");
}
