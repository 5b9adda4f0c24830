//! Limits of instance types, as `DescribeInstanceTypes` reports them.

/// Limits of one instance type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The name, such as `m5.large`.
    pub name: &'static str,
    /// The hypervisor; bare metal has none.
    pub hypervisor: Option<&'static str>,
    /// Interfaces of each network card.
    pub interfaces: u16,
    /// Network cards.
    pub cards: u16,
    /// IPv4 addresses of an interface; a prefix counts as one.
    pub ipv4: usize,
    /// IPv6 addresses of an interface; a prefix counts as one.
    pub ipv6: usize,
    /// The processor's architecture.
    pub architecture: &'static str,
}

impl Limits {
    /// Reports if interfaces can have prefixes.
    #[must_use]
    pub fn has_prefixes(&self) -> bool {
        self.hypervisor != Some("xen")
    }

    /// Interfaces of all cards.
    #[must_use]
    pub fn all_interfaces(&self) -> u16 {
        self.interfaces.saturating_mul(self.cards)
    }
}

/// A Nitro instance of x86 with one network card.
const fn row(name: &'static str, interfaces: u16, addresses: usize) -> Limits {
    Limits {
        name,
        hypervisor: Some("nitro"),
        interfaces,
        cards: 1,
        ipv4: addresses,
        ipv6: addresses,
        architecture: "x86_64",
    }
}

impl Limits {
    const fn cards(mut self, cards: u16) -> Self {
        self.cards = cards;
        self
    }

    const fn xen(mut self) -> Self {
        self.hypervisor = Some("xen");
        self
    }

    const fn metal(mut self) -> Self {
        self.hypervisor = None;
        self
    }

    const fn arm(mut self) -> Self {
        self.architecture = "arm64";
        self
    }
}

/// The types that the fake knows. The figures are those of the answers of `DescribeInstanceTypes`
/// that moto 5.2.5 carries (`moto/ec2/resources/instance_types.json`).
const TYPES: &[Limits] = &[
    row("c5.large", 3, 10),
    row("c5.xlarge", 4, 15),
    row("c5n.18xlarge", 15, 50),
    row("c6i.large", 3, 10),
    row("c6in.32xlarge", 8, 50).cards(2),
    row("c7g.xlarge", 4, 15).arm(),
    row("d3en.12xlarge", 3, 30),
    row("g4dn.xlarge", 3, 10),
    row("i3.large", 3, 10).xen(),
    row("m4.large", 2, 10).xen(),
    row("m5.24xlarge", 15, 50),
    row("m5.2xlarge", 4, 15),
    row("m5.4xlarge", 8, 30),
    row("m5.large", 3, 10),
    row("m5.metal", 15, 50).metal(),
    row("m5.xlarge", 4, 15),
    row("m6a.xlarge", 4, 15),
    row("m6i.large", 3, 10),
    row("m6i.xlarge", 4, 15),
    row("m7g.large", 3, 10).arm(),
    row("m7i.xlarge", 4, 15),
    row("p4d.24xlarge", 15, 50).cards(4),
    row("p5.48xlarge", 2, 50).cards(32),
    row("r5.large", 3, 10),
    row("r6g.metal", 15, 50).metal().arm(),
    row("r6i.xlarge", 4, 15),
    row("t2.medium", 3, 6).xen(),
    row("t3.large", 3, 12),
    row("t3.medium", 3, 6),
    row("trn1.32xlarge", 5, 50).cards(8),
];

/// Every type, by name.
pub(crate) fn all() -> &'static [Limits] {
    TYPES
}

/// The limits of a type.
pub(crate) fn of(name: &str) -> Option<&'static Limits> {
    TYPES.iter().find(|limits| limits.name == name)
}
