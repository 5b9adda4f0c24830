//! Outcome of a packet: verdicts and drop reasons.
//!
//! The numbers are part of the ABI: they are only ever appended, and a retired one stays reserved.

/// Declares an enum of numbered outcomes with names and explanations, so that the three cannot
/// drift apart.
macro_rules! outcomes {
    ($(#[$doc:meta])* $enum:ident { $($(#[doc = $text:literal])+ $variant:ident = $number:literal, $name:literal;)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        #[must_use]
        pub enum $enum {
            $($(#[doc = $text])+ $variant = $number,)+
        }

        impl $enum {
            /// Every variant, in the order of the numbers.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The stable name, as metrics and the command line show it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// The meaning, in one sentence.
            #[must_use]
            pub const fn explanation(self) -> &'static str {
                match self { $(Self::$variant => concat!($($text),+).trim_ascii(),)+ }
            }

            /// The variant with this number.
            #[must_use]
            pub const fn from_code(code: u8) -> Option<Self> {
                match code {
                    $($number => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }
    };
}

outcomes! {
    /// A packet went on. 0 to 63.
    Verdict {
        /// Delivered into the namespace of a local endpoint.
        Local = 0, "local";
        /// Sent out of the ENI that owns the source address.
        Eni = 1, "eni";
        /// Handed to the stack: the destination is an address of the host.
        Host = 2, "host";
        /// Handed to the stack: the destination is a service address.
        Service = 3, "service";
        /// Handed to the stack, which answers that the TTL or hop limit ran out.
        TtlExpired = 4, "ttl-expired";
        /// Handed to the stack, which fragments the packet or answers that it is too big.
        TooBig = 5, "too-big";
        /// Handed to the stack: the IPv4 header carries options.
        IpOptions = 6, "ip-options";
        /// Handed to the stack: broadcast or multicast.
        Multicast = 7, "multicast";
        /// Handed to the stack: neighbour discovery or MLD from a link-local or unspecified source.
        NeighbourDiscovery = 8, "neighbour-discovery";
        /// Handed to the stack: the destination is link-local.
        LinkLocal = 9, "link-local";
        /// ARP, passed on.
        Arp = 10, "arp";
        /// Passed to the stack: not for a pod of this node.
        NotForPod = 11, "not-for-pod";
        /// Passed on untouched: the frame is not for this host, carries a VLAN tag, or is not IP.
        ForeignFrame = 12, "foreign-frame";
        /// Translated and sent out of the ENI whose address it carries.
        Translated = 13, "translated";
        /// Translated back and delivered into the namespace of a local endpoint.
        Returned = 14, "returned";
        /// Sent untranslated out of the owner ENI: it answers what came from the outside.
        Inbound = 15, "inbound";
        /// Left as it is: the stack sends it for the host or for another network.
        FromHost = 16, "from-host";
        /// The host's packet holds its port against the pods' flows, and left as it is.
        HostClaimed = 17, "host-claimed";
        /// The host's packet got another port, because a pod's flow holds its own.
        HostTranslated = 18, "host-translated";
        /// Translated back and passed to the stack, for a socket of the host.
        HostReturned = 19, "host-returned";
        /// Passed on untranslated: the stack sends a pod's packet by the ENI that owns it.
        Carried = 20, "carried";
        /// Translated at egress: the stack sends a pod's packet by the ENI whose address it
        /// carries now.
        CarriedTranslated = 21, "carried-translated";
        /// Handed to the stack, which all traffic of this pod takes, or to the metadata service.
        Stack = 22, "stack";
        /// Translated back and handed to the stack, which all pod traffic takes.
        StackReturned = 23, "stack-returned";
        /// Sent out of the ENI that has the address of the host which the packet carries: the stack
        /// had chosen another one.
        HostMoved = 24, "host-moved";
        /// Handed to the stack: the packet is of a flow that takes the stack both ways, because
        /// service NAT there may have translated it.
        StackFlow = 25, "stack-flow";
        /// Translated back and handed to the stack, for the same reason.
        StackFlowReturned = 26, "stack-flow-returned";
        /// Handed to the stack, which puts the fragments of a datagram in order: a later one came
        /// before the first.
        Reordered = 27, "fragments-reordered";
        /// Passed on to the pod by the stack, and noted as a flow that takes the stack both ways.
        Noted = 28, "noted";
        /// Passed on to the pod by the stack: nothing is to be noted of it.
        ToPod = 29, "to-pod";
    }
}

outcomes! {
    /// A packet was dropped. 64 to 127.
    DropReason {
        /// The packet is shorter than its headers say, or shorter than a header.
        Truncated = 64, "truncated";
        /// A header field has a value that no valid packet has.
        MalformedHeader = 65, "malformed-header";
        /// The source is not an address of the endpoint that sent the packet.
        SpoofedSource = 66, "spoofed-source";
        /// A pod sent a frame with a VLAN tag.
        VlanTagged = 67, "vlan-tagged";
        /// A pod sent a frame that is neither IP nor ARP.
        NotIp = 68, "not-ip";
        /// The destination is in a block of this node, but no endpoint has it.
        NoEndpoint = 69, "no-endpoint";
        /// The ENI that owns the pod's address is absent or not ready.
        EniNotReady = 70, "eni-not-ready";
        /// The packet for a pod came by an ENI that does not own the pod's address.
        WrongEni = 71, "wrong-eni";
        /// A kernel helper failed: no memory to gather or to own the packet's headers.
        HelperFailed = 72, "helper-failed";
        /// No port is free for a new flow to this destination.
        NoPort = 73, "no-port";
        /// The table of translated flows is full.
        FlowsFull = 74, "flows-full";
        /// The endpoint, or the host, has as many translated flows as its quota allows.
        QuotaExceeded = 75, "quota-exceeded";
        /// The ENI by which the packet has to leave has no address to translate to.
        NoTranslationAddress = 76, "no-translation-address";
        /// The packet would have to be translated, and its protocol has no ports.
        NoPorts = 77, "protocol-without-ports";
        /// A fragment that needs translation came before the first one of its datagram, or too
        /// long after it.
        FragmentUnknown = 78, "fragment-unknown";
        /// The table of inbound flows is full.
        InboundFull = 79, "inbound-full";
        /// An ICMP error, an ICMP answer or a TCP reset about no flow that is known.
        NoFlow = 80, "no-flow";
        /// Pods must not reach the instance metadata service.
        MetadataBlocked = 81, "metadata-blocked";
        /// The SCTP port is taken, and the checksum does not allow for another one.
        SctpPortTaken = 82, "sctp-port-taken";
        /// The stack sends a packet to a service address that it did not translate.
        ServiceNotTranslated = 83, "service-not-translated";
        /// The endpoint has as many inbound flows as its quota allows.
        InboundQuotaExceeded = 84, "inbound-quota-exceeded";
        /// The table of flows that take the stack both ways is full.
        StackFull = 85, "stack-full";
        /// A secondary ENI received the packet for no address of this node, and the stack
        /// would send it back by that ENI, which does not own its source.
        ForeignSource = 86, "foreign-source";
        /// A pod sent the packet to an address that no network routes, such as a loopback address.
        UnroutableDestination = 87, "unroutable-destination";
        /// The packet for a pod came from an address that no network routes.
        UnroutableSource = 88, "unroutable-source";
        /// A pod sent a router solicitation. No router answers pods, whose routes are static.
        RouterSolicitation = 89, "router-solicitation";
        /// The endpoint has used as many link-local addresses as it may.
        LinkLocalLimit = 90, "link-local-limit";
    }
}

/// The outcome of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[must_use]
pub enum Outcome {
    /// It went on.
    Passed(Verdict),
    /// It was dropped.
    Dropped(DropReason),
}

impl Outcome {
    /// Numbers that outcomes may take.
    pub const SLOTS: u32 = 128;

    /// The outcome's number.
    #[inline(always)]
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Passed(verdict) => verdict as u8,
            Self::Dropped(reason) => reason as u8,
        }
    }

    /// The outcome with this number.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        if let Some(verdict) = Verdict::from_code(code) {
            return Some(Self::Passed(verdict));
        }
        if let Some(reason) = DropReason::from_code(code) {
            return Some(Self::Dropped(reason));
        }
        None
    }

    /// The stable name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Passed(verdict) => verdict.name(),
            Self::Dropped(reason) => reason.name(),
        }
    }

    /// The meaning, in one sentence.
    #[must_use]
    pub const fn explanation(self) -> &'static str {
        match self {
            Self::Passed(verdict) => verdict.explanation(),
            Self::Dropped(reason) => reason.explanation(),
        }
    }

    /// True if the packet was dropped.
    #[must_use]
    pub const fn is_drop(self) -> bool {
        matches!(self, Self::Dropped(_))
    }
}

const _: () = assert!(size_of::<Result<Verdict, DropReason>>() <= 8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_to_their_ranges_and_come_back() {
        for verdict in Verdict::ALL {
            assert!((*verdict as u8) < 64);
            assert_eq!(
                Outcome::from_code(*verdict as u8),
                Some(Outcome::Passed(*verdict))
            );
        }
        for reason in DropReason::ALL {
            assert!((64..128).contains(&(*reason as u8)));
            assert_eq!(
                Outcome::from_code(*reason as u8),
                Some(Outcome::Dropped(*reason))
            );
        }
        assert_eq!(Outcome::from_code(63), None);
        assert_eq!(DropReason::WrongEni.name(), "wrong-eni");
        assert!(
            DropReason::WrongEni
                .explanation()
                .starts_with("The packet for a pod")
        );
    }
}
