//! What is measured.

/// Something that a client and a server do over and over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// A small datagram from the client to the server, in bursts that are waited for: neither side
    /// is woken for a single one.
    UdpOneWay,
    /// A small datagram there and one back, both sides woken for each.
    UdpExchange,
    /// The same in a TCP connection that stays.
    TcpExchange,
    /// A TCP connection is opened, asked once, and closed by the client.
    TcpConnection,
    /// 64 KiB written to a TCP connection by the client.
    BulkOut,
    /// 64 KiB written to a TCP connection by the server.
    BulkIn,
    /// As [`Self::BulkOut`], cut into segments by the client's own TCP.
    BulkOutSegments,
    /// As [`Self::BulkIn`], cut into segments by the server's own TCP.
    BulkInSegments,
    /// 64-byte datagrams as fast as they go, the server woken as the scheduler likes. Wall time, not
    /// CPU time, per datagram that arrived: a rate turned over.
    UdpRate,
}

impl Operation {
    /// All of them. What needs other offloads stands together.
    pub const ALL: [Self; 9] = [
        Self::UdpOneWay,
        Self::UdpExchange,
        Self::TcpExchange,
        Self::TcpConnection,
        Self::BulkOut,
        Self::BulkIn,
        Self::UdpRate,
        Self::BulkOutSegments,
        Self::BulkInSegments,
    ];

    /// What a report calls it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::UdpOneWay => "UDP one-way",
            Self::UdpExchange => "UDP RR",
            Self::TcpExchange => "TCP RR",
            Self::TcpConnection => "connect+RR+close",
            Self::BulkOut => "64 KiB out",
            Self::BulkIn => "64 KiB in",
            Self::BulkOutSegments => "64 KiB out, no offload",
            Self::BulkInSegments => "64 KiB in, no offload",
            Self::UdpRate => "64-byte UDP at full rate, wall time",
        }
    }

    /// How often it is done for one figure: some ten milliseconds on a node that costs little, less
    /// than the scheduler gives a thread at a stretch several times over.
    #[must_use]
    pub fn count(self) -> u32 {
        match self {
            Self::UdpOneWay => 2048,
            Self::UdpRate => 3000,
            Self::UdpExchange => 500,
            Self::TcpExchange => 400,
            Self::TcpConnection => 100,
            Self::BulkOut | Self::BulkIn => 200,
            Self::BulkOutSegments | Self::BulkInSegments => 80,
        }
    }

    /// True if TCP leaves the cutting into segments to the devices.
    #[must_use]
    pub fn offloads(self) -> bool {
        !matches!(self, Self::BulkOutSegments | Self::BulkInSegments)
    }
}
