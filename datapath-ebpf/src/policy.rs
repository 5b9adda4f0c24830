//! The policy for new flows.

use datapath_common::abi::Addr;
use datapath_common::masquerade::{
    FlowRole, KnownFlow, PolicyInput, PolicyOutcome, PoolPolicy, rule,
};

use crate::base::{maps, settings};
use crate::scratch::Version;

/// True if a flow that a pod opens to this destination is translated, if its pool is.
#[inline(always)]
pub(crate) fn is_translated(destination: Addr) -> bool {
    let input = PolicyInput {
        flow: KnownFlow::None,
        destination: maps::destination(&destination),
        pool: PoolPolicy::Masquerade,
        is_on: Version::of(destination).is_masqueraded(),
        metadata: settings::metadata_policy(),
        role: FlowRole::New,
    };
    matches!(rule(&input), PolicyOutcome::Translated(_))
}
