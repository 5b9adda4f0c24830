//! Faults that the programs have on demand, when they are built with the feature `seeded-faults`;
//! the tests of the programs must find each.

/// Name of the global that says which fault the programs have, 0 for none (`u32`).
pub const FAULT: &str = "FAULT";

macro_rules! faults {
    ($($(#[doc = $text:literal])+ $variant:ident,)+) => {
        /// A fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum Fault {
            /// None.
            None = 0,
            $($(#[doc = $text])+ $variant,)+
        }

        impl Fault {
            /// Every fault.
            pub const ALL: &[Self] = &[$(Self::$variant),+];
        }
    };
}

faults! {
    /// The transport checksum does not follow a port.
    PortChecksum,
    /// The transport checksum does not follow an address.
    AddressChecksum,
    /// The checksum of the IPv4 header does not follow an address.
    HeaderChecksum,
    /// The port of the other side is written.
    WrongSide,
    /// An IPv4 packet keeps its TTL.
    TtlKept,
    /// The sum that the kernel has of an IPv6 packet does not follow its hop limit.
    HopLimitSum,
    /// Pools that skip masquerade are masqueraded.
    SkipIgnored,
    /// Exempt destinations are masqueraded.
    ExemptionIgnored,
    /// New flows leave by the owner ENI, whatever the external policy.
    OwnerExit,
    /// Translated packets to the metadata service leave by any ENI.
    MetadataExit,
    /// The transport checksum of a quoted packet stays as it was.
    QuotedChecksum,
    /// The port of a quoted packet stays as it was.
    QuotedPort,
    /// The address of a quoted packet stays as it was.
    QuotedAddress,
    /// The address of an ICMP error stays as it was.
    ErrorAddress,
    /// The checksum of an ICMP error stays as it was.
    ErrorChecksum,
    /// An ICMP error keeps its flow alive.
    ErrorRefreshes,
    /// Datagrams are distinguished without their identification.
    FragmentId,
    /// The record of a first fragment is not kept.
    FragmentIgnored,
    /// The flow that an ICMP error in pieces is about is not kept.
    ErrorPiecesIgnored,
    /// A first fragment is believed for ever.
    FragmentForEver,
    /// A UDP datagram without a checksum gets one.
    UdpZero,
    /// Bytes after the packet count as its header.
    Padding,
    /// The length that an IP header names is believed.
    LengthBelieved,
    /// IPv6 extension headers are as short as they can be.
    ExtensionLength,
    /// A packet may have any source.
    SpoofedSource,
    /// A packet is delivered from the pod's own MAC.
    DeliveryMac,
    /// A packet with an expired TTL goes on.
    LastHop,
    /// A packet may be longer than the MTU by one byte.
    Mtu,
    /// A pod's packet may come by any ENI.
    AnyEni,
    /// The mark is that of the ENI before.
    EniMark,
    /// Every port counts as the next one: the last of ours is none.
    LastPort,
    /// A refusal counts as any other RST.
    RefusalIgnored,
    /// A SYN with ACK opens a flow.
    AcceptanceOpens,
    /// Flows do not count for their endpoint's quota.
    QuotaNotCounted,
    /// Flows off their first port are not found.
    MovedIgnored,
    /// A note is not counted.
    NoteNotCounted,
    /// A flow is any tuple's that gets its port.
    AnybodysFlow,
    /// Flows of the former pod with an address count as those of the next one.
    FormerPodsFlow,
    /// Inbound flows are not counted.
    InboundNotCounted,
    /// The host claims its port towards destinations that are exempt.
    HostExempt,
    /// A flow that is being removed is found.
    DeadFlow,
    /// A flow at another ENI than policy's is not found.
    PolicyChangeIgnored,
    /// The progress of a flow is not kept.
    Progress,
    /// Replies lose the port of the pod.
    InsidePort,
    /// The host's packets claim no port.
    HostIgnored,
    /// A host's packet keeps the port that a pod's flow has.
    HostPortKept,
    /// A datagram from the outside is not noted.
    InboundIgnored,
    /// The progress that segments from the outside show of their connection is not recorded.
    SegmentIgnored,
    /// Redirected packets are not marked as done.
    DoneForgotten,
    /// The stack's choice of an ENI for a packet with an address of the host is not corrected.
    HostNotMoved,
    /// Packets that are marked as done are processed once more.
    DoneIgnored,
    /// Packets that take the stack because of an exception are noted as a flow of the stack.
    ExceptionNoted,
    /// A long two-way flow is not treated as a stream.
    StreamIgnored,
    /// A packet of a flow of the stack bypasses it.
    StackPassed,
    /// Replies to a flow of the stack get the owner's mark.
    StackMark,
    /// A pod's own packets of a translated flow of the stack bypass it.
    StackOutPassed,
    /// A full table of the stack's flows lets packets pass without a note.
    StackFullPassed,
    /// Packets that are translated on their way from the stack bypass it on their way back.
    StackReturnPassed,
    /// A datagram's first fragment takes another path than the later one that came before it.
    ReorderedPassed,
    /// An ICMP error about a flow of the stack bypasses it.
    StackErrorPassed,
    /// A change of a flow leaves its cache entries valid.
    StaleFlow,
    /// A flow is not updated by a cached segment.
    NotTold,
    /// A change of addresses, destinations or ENIs leaves cache entries valid.
    StalePolicy,
    /// Packets that are shaped in the stack bypass it.
    ShapingIgnored,
    /// Packets that an ENI received for an unknown address leave by it again.
    SentBack,
    /// Packets to a destination without a route are sent.
    UnroutableSent,
    /// Packets from a source without a route are delivered.
    UnroutableDelivered,
    /// Packets that the host sends with a source of netfilter's are not noted.
    HostUnnoted,
    /// Packets to the metadata service that the stack decides on bypass it.
    MetadataPassed,
}
