//! Settings that are fixed when the programs are loaded: read-only globals of the object, so that
//! the verifier removes the branches they rule out.

use aya_ebpf::Global;
use datapath_common::masquerade::MetadataPolicy;

#[unsafe(no_mangle)]
static MASQUERADE_V4: Global<u32> = Global::new(1);
#[unsafe(no_mangle)]
static MASQUERADE_V6: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static METADATA_POLICY: Global<u32> = Global::new(MetadataPolicy::Primary as u32);

#[unsafe(no_mangle)]
static PATH_STACK: Global<u32> = Global::new(0);

#[unsafe(no_mangle)]
static SERVICE_NAT: Global<u32> = Global::new(0);

/// True if flows that the host's stack carries are noted and looked up, so that both directions
/// take the same path.
#[inline(always)]
pub(crate) fn notes_stack() -> bool {
    SERVICE_NAT.load() != 0
}

/// True if all pod traffic takes the host's stack.
#[inline(always)]
pub(crate) fn takes_stack() -> bool {
    PATH_STACK.load() != 0
}

/// True if IPv4 is masqueraded.
#[inline(always)]
pub(crate) fn masquerades_v4() -> bool {
    MASQUERADE_V4.load() != 0
}

/// True if IPv6 is masqueraded.
#[inline(always)]
pub(crate) fn masquerades_v6() -> bool {
    MASQUERADE_V6.load() != 0
}

/// The outcome of packets to the instance metadata service.
#[inline(always)]
pub(crate) fn metadata_policy() -> MetadataPolicy {
    const OWN: u32 = MetadataPolicy::Own as u32;
    const BLOCK: u32 = MetadataPolicy::Block as u32;
    const STACK: u32 = MetadataPolicy::Stack as u32;
    match METADATA_POLICY.load() {
        OWN => MetadataPolicy::Own,
        BLOCK => MetadataPolicy::Block,
        STACK => MetadataPolicy::Stack,
        _ => MetadataPolicy::Primary,
    }
}
