//! Which packets of pods are masqueraded: one decision for both families, for packets from a pod's
//! device and from the host's stack, and for `towpath masq explain`.

use crate::abi::DestinationClass;
use crate::outcome::DropReason;

/// The outcome of packets to the instance metadata service (`169.254.169.254`,
/// `fd00:ec2::254`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum MetadataPolicy {
    /// Out of the primary ENI with its address, as the VPC CNI does it.
    #[default]
    Primary = 0,
    /// Out of the owner ENI with the pod's address.
    Own = 1,
    /// Dropped.
    Block = 2,
    /// Up to the host's stack, whose rules may give them another destination or drop them; what it
    /// sends on goes as with [`Self::Primary`].
    Stack = 3,
}

impl MetadataPolicy {
    /// Every policy.
    pub const ALL: [Self; 4] = [Self::Primary, Self::Own, Self::Block, Self::Stack];
}

/// Masquerade policy of the pool of a pod's address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PoolPolicy {
    /// It is masqueraded.
    #[default]
    Masquerade,
    /// The pool is not masqueraded.
    Skip,
    /// The pool is masqueraded towards exempt destinations too.
    ///
    /// No node outside knows its addresses, so no packet may leave with one.
    Always,
}

impl PoolPolicy {
    /// Every policy.
    pub const ALL: [Self; 3] = [Self::Masquerade, Self::Skip, Self::Always];

    /// True if it is [`Self::Always`].
    #[inline(always)]
    #[must_use]
    pub const fn is_always(self) -> bool {
        matches!(self, Self::Always)
    }
}

/// Facts about the flow of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KnownFlow {
    /// Nothing.
    None,
    /// It is translated, as the flow itself records.
    Translated,
    /// It was opened from the outside.
    Inbound,
}

/// Role of a packet for an unknown flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FlowRole {
    /// It can open one.
    New,
    /// It accepts one that was opened from the outside: TCP's SYN with ACK.
    Accepts,
    /// It refuses one that was opened from the outside: TCP's RST with ACK and sequence number 0
    /// (RFC 9293 section 3.10.7.1), which no flow is ever made for.
    Refuses,
    /// It belongs to one: an ICMP error or answer, any other RST.
    Existing,
    /// Its protocol has no ports.
    Portless,
}

impl FlowRole {
    /// Every kind.
    pub const ALL: [Self; 5] = [
        Self::New,
        Self::Accepts,
        Self::Refuses,
        Self::Existing,
        Self::Portless,
    ];
}

/// All inputs of the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyInput {
    /// The flow, if it is known.
    pub flow: KnownFlow,
    /// Classes of the destination, which is none of this node.
    pub destination: DestinationClass,
    /// Masquerade policy of the source's pool.
    pub pool: PoolPolicy,
    /// True if the family is masqueraded.
    pub is_on: bool,
    /// The setting.
    pub metadata: MetadataPolicy,
    /// Role of the packet for an unknown flow.
    pub role: FlowRole,
}

/// By which ENI a flow leaves that is to be translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Exit {
    /// The primary.
    Primary,
    /// The one that the external policy gives for the owner ENI of the source.
    External,
}

/// Why a packet leaves as it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Why {
    /// The destination is in a CIDR of the VPC.
    ExemptVpc,
    /// The destination is in a native-routing CIDR.
    ExemptNative,
    /// The destination is in a CIDR of the ip-masq-agent file.
    ExemptMasqAgent,
    /// The destination is link-local, or metadata with the policy `own`.
    ExemptLinkLocal,
    /// The pool of the source skips masquerade.
    SkipPool,
    /// The family is not masqueraded.
    Off,
    /// It answers what came from the outside.
    Inbound,
    /// It is translated.
    Translated,
}

impl Why {
    /// The stable name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ExemptVpc => "exempt-vpc",
            Self::ExemptNative => "exempt-native",
            Self::ExemptMasqAgent => "exempt-masq-agent",
            Self::ExemptLinkLocal => "exempt-link-local",
            Self::SkipPool => "skip-pool",
            Self::Off => "off",
            Self::Inbound => "inbound",
            Self::Translated => "translated",
        }
    }
}

/// The outcome of a packet that leaves the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Out by the owner ENI of the source, untranslated.
    Untranslated(Why),
    /// Out by the owner ENI of the source, untranslated, and noted as inbound first.
    NoteInbound,
    /// Translated as its flow says.
    KnownTranslation,
    /// Translated as a new flow.
    Translate(Exit),
    /// Dropped.
    Drop(DropReason),
}

/// Decides on a packet of a pod that leaves the node.
#[inline(always)]
#[must_use]
pub const fn decide(input: &PolicyInput) -> Decision {
    match input.flow {
        KnownFlow::Translated => return Decision::KnownTranslation,
        // A note may be older than the policy that hides its pool from the outside.
        KnownFlow::Inbound if input.pool.is_always() => {
            return Decision::Drop(DropReason::NoFlow);
        }
        KnownFlow::Inbound => return Decision::Untranslated(Why::Inbound),
        KnownFlow::None => {}
    }
    match rule(input) {
        PolicyOutcome::Untranslated(why) => Decision::Untranslated(why),
        PolicyOutcome::Drop(reason) => Decision::Drop(reason),
        PolicyOutcome::Translated(exit) => match input.role {
            FlowRole::New => Decision::Translate(exit),
            // An incoming packet to such an address came by a path that no answer could take.
            FlowRole::Accepts | FlowRole::Refuses if input.pool.is_always() => {
                Decision::Drop(DropReason::NoFlow)
            }
            FlowRole::Accepts => Decision::NoteInbound,
            FlowRole::Refuses => Decision::Untranslated(Why::Inbound),
            FlowRole::Existing => Decision::Drop(DropReason::NoFlow),
            FlowRole::Portless => Decision::Drop(DropReason::NoPorts),
        },
    }
}

/// The policy for a source and a destination, whatever the flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyOutcome {
    /// Packets keep their source.
    Untranslated(Why),
    /// New flows are translated.
    Translated(Exit),
    /// Packets are dropped.
    Drop(DropReason),
}

/// The policy for the question, its flow and opening aside. A packet that policy does not
/// translate needs no look at its flow, unless policy has changed.
#[inline(always)]
#[must_use]
pub const fn rule(input: &PolicyInput) -> PolicyOutcome {
    let class = input.destination;
    if class.contains(DestinationClass::METADATA) {
        match input.metadata {
            MetadataPolicy::Primary | MetadataPolicy::Stack => {
                return PolicyOutcome::Translated(Exit::Primary);
            }
            MetadataPolicy::Own if input.pool.is_always() => {
                return PolicyOutcome::Translated(Exit::Primary);
            }
            MetadataPolicy::Own => return PolicyOutcome::Untranslated(Why::ExemptLinkLocal),
            MetadataPolicy::Block => return PolicyOutcome::Drop(DropReason::MetadataBlocked),
        }
    }
    if input.pool.is_always() {
        return if input.is_on {
            PolicyOutcome::Translated(Exit::External)
        } else {
            PolicyOutcome::Drop(DropReason::NoTranslationAddress)
        };
    }
    if class.intersects(DestinationClass::EXEMPT) {
        return PolicyOutcome::Untranslated(exemption(class));
    }
    if matches!(input.pool, PoolPolicy::Skip) {
        return PolicyOutcome::Untranslated(Why::SkipPool);
    }
    if !input.is_on {
        return PolicyOutcome::Untranslated(Why::Off);
    }
    PolicyOutcome::Translated(Exit::External)
}

const fn exemption(class: DestinationClass) -> Why {
    if class.contains(DestinationClass::VPC) {
        Why::ExemptVpc
    } else if class.contains(DestinationClass::NATIVE) {
        Why::ExemptNative
    } else if class.contains(DestinationClass::MASQ_AGENT) {
        Why::ExemptMasqAgent
    } else {
        Why::ExemptLinkLocal
    }
}

#[cfg(test)]
mod tests;
