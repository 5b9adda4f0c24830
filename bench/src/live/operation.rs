//! The operations that are measured.

/// Something that a client and a server do repeatedly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// A small datagram from the client to the server, in bursts that the client waits for: neither
    /// side is woken for a single one.
    UdpOneWay,
    /// A small datagram there and one back, both sides woken for each.
    UdpExchange,
    /// A small request and a small answer in a TCP connection that stays.
    TcpExchange,
    /// A TCP connection is opened, carries one request, and is closed by the client.
    TcpConnection,
    /// 64 KiB written to a TCP connection by the client.
    BulkOut,
    /// 64 KiB written to a TCP connection by the server.
    BulkIn,
    /// As [`Self::BulkOut`], cut into segments by the client's own TCP.
    BulkOutSegments,
    /// As [`Self::BulkIn`], cut into segments by the server's own TCP.
    BulkInSegments,
    /// 64-byte datagrams at full rate; the scheduler decides when the server wakes.
    ///
    /// The figure is wall time, not CPU time, per datagram that arrived: the inverse of a rate.
    UdpRate,
}

impl Operation {
    /// All operations. Those that need other offloads stand together.
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

    /// Name in a report.
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

    /// Number of repetitions for one figure.
    ///
    /// They take some ten milliseconds on a cheap node. That is several times less than the
    /// scheduler gives a thread at a stretch.
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

    /// True if TCP leaves segmentation to the devices.
    #[must_use]
    pub fn offloads(self) -> bool {
        !matches!(self, Self::BulkOutSegments | Self::BulkInSegments)
    }
}
