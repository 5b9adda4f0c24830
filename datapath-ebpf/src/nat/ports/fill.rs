//! Creation of a block of a destination that has become busy.
//!
//! A block is made once, with a bit for each flow that exists by then. Ports that were allocated
//! without a search count like others. The block goes into the map when it is
//! complete, so that no used port looks free. The port of a flow that is opened during the scan may
//! have no bit: the first attempt at that port finds the flow. The bit of a flow that ends during
//! the scan stays until user space compares the blocks with the flows.
//!
//! Where there can be no more blocks, the reserve is scanned for each flow. Its ports may be nearly
//! used up, and a pod that has a share of them needs one.

use datapath_common::abi::PortBlock;
use datapath_common::ports::{self, WORDS};

use crate::base::maps::PORT_BLOCKS;
use crate::nat::attempt::attempt;
use crate::nat::tables::{FLOWS, Refusal, Table as _};

/// Makes the block with a number. A block that another CPU has made serves as well.
#[inline(always)]
pub(super) fn fill(number: u8) {
    let _is_there = nat_fill(number.into());
}

/// 1 if there is such a block, 0 if not.
#[unsafe(no_mangle)]
#[inline(never)]
#[expect(clippy::cast_possible_truncation, reason = "`fill` gives a byte")]
extern "C" fn nat_fill(number: u32) -> u32 {
    make(number as u8).is_some().into()
}

#[inline(always)]
fn make(number: u8) -> Option<()> {
    const { assert!(size_of::<PortBlock>() == 8 * (1 + WORDS as usize)) };
    let this = attempt()?;
    if this.has_no_room && !this.in_reserve {
        return None;
    }
    let mut port = u32::from(ports::port_of(number, 0));
    // The first word is the lock, and stays 0.
    for word in 1..=WORDS as usize {
        let low = nat_used(port);
        let high = nat_used(port.wrapping_add(u32::BITS));
        attempt()?.block[word] = u64::from(high) << u32::BITS | u64::from(low);
        port = port.wrapping_add(u64::BITS);
    }
    let attempt = attempt()?;
    let key = attempt.block_key(number);
    // SAFETY: the words have the size and alignment of a block, and any bytes are one.
    let block = unsafe { &*(&raw const attempt.block).cast::<PortBlock>() };
    match PORT_BLOCKS.claim(&key, block) {
        Ok(()) | Err(Refusal::Exists) => Some(()),
        Err(_refusal) => {
            attempt.has_no_room = true;
            None
        }
    }
}

// The verifier follows each round of a loop. The body is therefore a function of its own, which the
// verifier checks once.

/// A bit for each port that is used, of 32 from this one on.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn nat_used(first: u32) -> u32 {
    let mut used = 0;
    for index in 0..u32::BITS {
        used |= (nat_is_used(first.wrapping_add(index)) & 1) << index;
    }
    used
}

/// 1 if a flow has the port, or 0.
#[unsafe(no_mangle)]
#[inline(never)]
#[expect(clippy::cast_possible_truncation, reason = "`make` gives a port")]
extern "C" fn nat_is_used(port: u32) -> u32 {
    let is_used = attempt().is_some_and(|attempt| {
        attempt.key.port = (port as u16).to_be();
        FLOWS.find(&attempt.key).is_some()
    });
    is_used.into()
}
