//! Faults on demand, for the test of the tests.

use datapath_common::fault::Fault;

#[cfg(feature = "seeded-faults")]
#[unsafe(no_mangle)]
static FAULT: aya_ebpf::Global<u32> = aya_ebpf::Global::new(Fault::None as u32);

/// True if the programs were loaded with this fault.
#[cfg(feature = "seeded-faults")]
#[inline(always)]
pub(crate) fn has(fault: Fault) -> bool {
    FAULT.load() == fault as u32
}

/// Without the feature the programs have no fault, and nothing is left of the question.
#[cfg(not(feature = "seeded-faults"))]
#[inline(always)]
pub(crate) const fn has(_fault: Fault) -> bool {
    false
}
