//! Marks of conntrack's entries (`CONNMARK`, `ct mark`).

use std::ops::ControlFlow;

use anyhow::Context as _;
use netlink_packet_core::DefaultNla;
use netlink_packet_netfilter::conntrack::{ConntrackAttribute, ConntrackMessage};
use netlink_packet_netfilter::{NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily};

use super::{Conntrack, message};
use crate::netlink::netfilter_sysctl;

/// `CTA_MARK_MASK` in `include/uapi/linux/netfilter/nfnetlink_conntrack.h`.
const MARK_MASK: u16 = 21;

impl Conntrack {
    /// True if an entry of any zone and protocol has these bits of its mark so.
    ///
    /// # Errors
    /// As for [`Conntrack::dump`].
    pub fn has_mark(&mut self, value: u32, mask: u32) -> anyhow::Result<bool> {
        // A kernel without marks ignores the filter, so each entry is checked, too.
        let mask_attribute = DefaultNla::new(MARK_MASK, mask.to_be_bytes().to_vec());
        let filter = vec![
            ConntrackAttribute::CtaMark(value),
            ConntrackAttribute::Other(mask_attribute),
        ];
        let question = message(NetfilterProtoFamily::Unspec, ConntrackMessage::Get(filter));
        let mut is_there = false;
        self.socket
            .dump(&question, &mut |message| {
                is_there |= mark(&message).is_some_and(|mark| mark & mask == value);
                if is_there {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            })
            .with_context(|| format!("look for the mark {value:#x}/{mask:#x} in conntrack"))?;
        Ok(is_there)
    }
}

/// Number of conntrack entries in the network namespace of the calling thread; none where it is not
/// loaded.
#[must_use]
pub fn entries() -> Option<u32> {
    netfilter_sysctl("nf_conntrack_count")
}

/// The mark of a message's entry.
pub(super) fn mark(message: &NetfilterMessage) -> Option<u32> {
    let NetfilterMessageInner::Conntrack(ConntrackMessage::New(attributes)) = &message.inner else {
        return None;
    };
    attributes.iter().find_map(|attribute| match attribute {
        ConntrackAttribute::CtaMark(mark) => Some(*mark),
        _ => None,
    })
}
