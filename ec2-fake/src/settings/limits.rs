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

const fn row(
    name: &'static str,
    hypervisor: Option<&'static str>,
    (cards, interfaces): (u16, u16),
    (ipv4, ipv6): (usize, usize),
    architecture: &'static str,
) -> Limits {
    Limits {
        name,
        hypervisor,
        interfaces,
        cards,
        ipv4,
        ipv6,
        architecture,
    }
}

const NITRO: Option<&str> = Some("nitro");
const XEN: Option<&str> = Some("xen");
const X86: &str = "x86_64";
const ARM: &str = "arm64";

/// The types that the fake knows. The figures are those of the answers of `DescribeInstanceTypes`
/// that moto 5.2.5 carries (`moto/ec2/resources/instance_types.json`).
const TYPES: &[Limits] = &[
    row("c5.large", NITRO, (1, 3), (10, 10), X86),
    row("c5.xlarge", NITRO, (1, 4), (15, 15), X86),
    row("c5n.18xlarge", NITRO, (1, 15), (50, 50), X86),
    row("c6i.large", NITRO, (1, 3), (10, 10), X86),
    row("c6in.32xlarge", NITRO, (2, 8), (50, 50), X86),
    row("c7g.xlarge", NITRO, (1, 4), (15, 15), ARM),
    row("d3en.12xlarge", NITRO, (1, 3), (30, 30), X86),
    row("g4dn.xlarge", NITRO, (1, 3), (10, 10), X86),
    row("i3.large", XEN, (1, 3), (10, 10), X86),
    row("m4.large", XEN, (1, 2), (10, 10), X86),
    row("m5.24xlarge", NITRO, (1, 15), (50, 50), X86),
    row("m5.2xlarge", NITRO, (1, 4), (15, 15), X86),
    row("m5.4xlarge", NITRO, (1, 8), (30, 30), X86),
    row("m5.large", NITRO, (1, 3), (10, 10), X86),
    row("m5.metal", None, (1, 15), (50, 50), X86),
    row("m5.xlarge", NITRO, (1, 4), (15, 15), X86),
    row("m6a.xlarge", NITRO, (1, 4), (15, 15), X86),
    row("m6i.large", NITRO, (1, 3), (10, 10), X86),
    row("m6i.xlarge", NITRO, (1, 4), (15, 15), X86),
    row("m7g.large", NITRO, (1, 3), (10, 10), ARM),
    row("m7i.xlarge", NITRO, (1, 4), (15, 15), X86),
    row("p4d.24xlarge", NITRO, (4, 15), (50, 50), X86),
    row("p5.48xlarge", NITRO, (32, 2), (50, 50), X86),
    row("r5.large", NITRO, (1, 3), (10, 10), X86),
    row("r6g.metal", None, (1, 15), (50, 50), ARM),
    row("r6i.xlarge", NITRO, (1, 4), (15, 15), X86),
    row("t2.medium", XEN, (1, 3), (6, 6), X86),
    row("t3.large", NITRO, (1, 3), (12, 12), X86),
    row("t3.medium", NITRO, (1, 3), (6, 6), X86),
    row("trn1.32xlarge", NITRO, (8, 5), (50, 50), X86),
];

/// Every type, by name.
pub(crate) fn all() -> &'static [Limits] {
    TYPES
}

/// The limits of a type.
pub(crate) fn of(name: &str) -> Option<&'static Limits> {
    TYPES.iter().find(|limits| limits.name == name)
}
