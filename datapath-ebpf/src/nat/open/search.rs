//! The search for a free port, when the first candidate is taken.
//!
//! The search tries a few random ports first, which is sufficient until most are used. Then it
//! tries the blocks of the destination, and then its reserve, of which each endpoint has a share.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers::generated::bpf_get_prandom_u32;
use datapath_common::ports::{MAX_BLOCKS, port_of};

use super::claim::claim;
use crate::nat::attempt::attempt;
use crate::nat::ports::{self, blocks, share};
use crate::nat::tables::Refusal;

/// Ports tried by chance.
const BY_CHANCE: u32 = 4;
/// Number of blocks that are searched in one turn.
const LOOKS: u32 = 16;
/// Number of turns: enough for each of the blocks once, and for 64 ports that look free and are
/// not.
const TURNS: u32 = (MAX_BLOCKS + 64).div_ceil(LOOKS);

/// Number of turns for the reserve, which has at most fifteen blocks.
const RESERVE_TURNS: u32 = 2;

/// Result of a look when all blocks have been searched since the last one that had a port; it is no
/// result of an insertion.
const NO_MORE: i32 = 1;

/// Claims a port other than the first candidate. Returns the result of the last insertion; its port
/// is that of the attempt's key.
#[inline(always)]
pub(in crate::nat) fn search(skb: *mut __sk_buff) -> i32 {
    for _ in 0..BY_CHANCE {
        let result = nat_try(skb).cast_signed();
        if result != Refusal::EXISTS {
            return result;
        }
    }
    if let Some(attempt) = attempt() {
        // Half of the numbers, so that it does not overflow within a search.
        attempt.next_look = random() >> 1;
        attempt.looks_in_vain = 0;
    }
    for _ in 0..TURNS {
        match nat_turn(skb).cast_signed() {
            Refusal::EXISTS => {}
            NO_MORE => break,
            result => return result,
        }
    }
    in_reserve(skb)
}

/// Claims a port of the reserve, if the endpoint may have one more. Gives what [`search`] does.
#[inline(always)]
fn in_reserve(skb: *mut __sk_buff) -> i32 {
    if !share::take() {
        return Refusal::EXISTS;
    }
    if let Some(attempt) = attempt() {
        attempt.in_reserve = true;
        attempt.looks_in_vain = 0;
    }
    for _ in 0..RESERVE_TURNS {
        match nat_turn(skb).cast_signed() {
            Refusal::EXISTS => {}
            0 => return 0,
            _ => break,
        }
    }
    share::give_back_attempt();
    Refusal::EXISTS
}

// A round is a global function, and its state for the next one is stored in the attempt. In a loop
// with calls, old verifiers (Linux 5.10) distinguish rounds by every number in a register. The
// verifier also follows each round: two nested loops have fewer than one.

/// Claims a random port. Returns the bits of the insertion's result.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn nat_try(skb: *mut __sk_buff) -> u32 {
    claim(skb, ports::spread(random())).cast_unsigned()
}

/// Claims a port of the next blocks. The bits of what the last insertion gave, or [`NO_MORE`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn nat_turn(skb: *mut __sk_buff) -> u32 {
    for _ in 0..LOOKS {
        let result = nat_look(skb);
        if result.cast_signed() != Refusal::EXISTS {
            return result;
        }
    }
    Refusal::EXISTS.cast_unsigned()
}

/// Claims a port of the next block. The bits of what the insertion gave, or [`NO_MORE`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn nat_look(skb: *mut __sk_buff) -> u32 {
    look(skb).unwrap_or(Refusal::FAILED).cast_unsigned()
}

/// Searches one block. The blocks are searched one after another, beginning with any.
#[inline(always)]
fn look(skb: *mut __sk_buff) -> Option<i32> {
    let in_reserve = attempt()?.in_reserve;
    let count = ports::block_count(in_reserve);
    let this = attempt()?;
    let number = ports::block(in_reserve, this.next_look % count);
    this.next_look = this.next_look.wrapping_add(1);
    let picked = blocks::pick(number, random());
    let this = attempt()?;
    let Some(index) = picked else {
        this.looks_in_vain = this.looks_in_vain.wrapping_add(1);
        let is_last = this.looks_in_vain >= count;
        return Some(if is_last { NO_MORE } else { Refusal::EXISTS });
    };
    // If the port is taken nevertheless, the block has been updated.
    this.looks_in_vain = 0;
    Some(claim(skb, port_of(number, index).to_be()))
}

#[inline(always)]
fn random() -> u32 {
    // SAFETY: the helper takes nothing.
    unsafe { bpf_get_prandom_u32() }
}
