//! Link-local addresses that an endpoint uses. The host may resolve each of them, and its neighbour
//! table is shared by all namespaces.

use core::mem::MaybeUninit;
use core::ptr;

use aya_ebpf::bindings::BPF_NOEXIST;
use datapath_common::abi::{Addr, LinkLocalKey, LinkLocals};

use crate::base::maps::LINK_LOCALS;
use crate::scratch::{self, scratch};

/// True if the endpoint may use the source of the packet whose header is kept.
#[inline(always)]
pub(crate) fn may_send_from(ifindex: u32) -> bool {
    link_local_used(ifindex, 0) != 0
}

/// True if the endpoint may use the destination of the packet whose header is kept.
#[inline(always)]
pub(crate) fn may_send_to(ifindex: u32) -> bool {
    link_local_used(ifindex, 1) != 0
}

/// 1 if the endpoint may use the address of a side, or 0.
///
/// A global function, so that the key and a new value do not lie on the stack of its caller.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn link_local_used(ifindex: u32, side: u32) -> u32 {
    let Ok(scratch) = scratch() else {
        return 0;
    };
    let ip = scratch::read(scratch.ip());
    let (key, address) = if side == 0 {
        (LinkLocalKey::source(ifindex), &ip.source)
    } else {
        (LinkLocalKey::destination(ifindex), &ip.destination)
    };
    let is_used = used(&key).is_some_and(|used| is_among(used, address));
    is_used.into()
}

/// The addresses of a key.
#[inline(always)]
fn used(key: &LinkLocalKey) -> Option<*mut LinkLocals> {
    LINK_LOCALS.get_ptr_mut(key).or_else(|| {
        let mut none = MaybeUninit::<LinkLocals>::uninit();
        let first = none.as_mut_ptr().cast::<Addr>();
        // Volatile, or the compiler calls a routine that writes byte by byte.
        for index in 0..LinkLocals::MOST {
            // SAFETY: the index is below the number of the value's addresses.
            unsafe { ptr::write_volatile(first.add(index), Addr::UNSPECIFIED) };
        }
        // SAFETY: each address was written, and there is nothing else in it.
        let none = unsafe { none.assume_init_ref() };
        // Another CPU may be faster.
        let _exists = LINK_LOCALS.insert(key, none, u64::from(BPF_NOEXIST));
        LINK_LOCALS.get_ptr_mut(key)
    })
}

/// True if an address is one of those, or becomes one. Two CPUs may take the same free slot; one
/// packet of another address passes then.
#[inline(always)]
fn is_among(used: *mut LinkLocals, address: &Addr) -> bool {
    let first = used.cast::<Addr>();
    for index in 0..LinkLocals::MOST {
        // SAFETY: `used` is a map's value, which stays readable and writable while the program
        // runs, and the index is below the number of its addresses.
        let slot = unsafe { first.add(index) };
        // SAFETY: as above.
        let there = unsafe { ptr::read_volatile(slot) };
        if there == *address {
            return true;
        }
        if there == Addr::UNSPECIFIED {
            // SAFETY: as above.
            unsafe { ptr::write_volatile(slot, scratch::copied(address)) };
            return true;
        }
    }
    false
}
