//! Faults of the headers: reading, checksums, fragments, ICMP errors.

use super::{Change, Fault};

/// The faults.
pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "PortChecksum",
        effect: "The transport checksum does not follow a port.",
        changes: &[Change {
            file: "packet/rewrite.rs",
            code: "packet.update_checksum(at, growth, field.flags)?;",
            with: "if !FAULT { packet.update_checksum(at, growth, field.flags)?; }",
        }],
    },
    Fault {
        name: "AddressChecksum",
        effect: "The transport checksum does not follow an address.",
        changes: &[Change {
            file: "packet/rewrite.rs",
            code: "field.filter(|field| field.covers_addresses)",
            with: "field.filter(|field| field.covers_addresses && !FAULT)",
        }],
    },
    Fault {
        name: "HeaderChecksum",
        effect: "The checksum of the IPv4 header does not follow an address.",
        changes: &[Change {
            file: "packet/family/v4.rs",
            code: "packet.store(offset + offset_of!(Ipv4, checksum), &sum, 0)?;",
            with: "if !FAULT { packet.store(offset + offset_of!(Ipv4, checksum), &sum, 0)?; }",
        }],
    },
    Fault {
        name: "WrongSide",
        effect: "The port of the other side is written.",
        changes: &[Change {
            file: "packet/transport.rs",
            code: "AddrField::Source => 0, AddrField::Destination => 2,",
            with: "AddrField::Source => usize::from(FAULT) * 2, AddrField::Destination => 2,",
        }],
    },
    Fault {
        name: "TtlKept",
        effect: "An IPv4 packet keeps its TTL.",
        changes: &[Change {
            file: "packet/family/v4.rs",
            code: "header.ttl = header.ttl.wrapping_sub(1);",
            with: "if FAULT { return Ok(()); } header.ttl = header.ttl.wrapping_sub(1);",
        }],
    },
    Fault {
        name: "HopLimitSum",
        effect: "The sum that the kernel has of an IPv6 packet does not follow its hop limit.",
        changes: &[Change {
            file: "packet/family/v6.rs",
            code: "packet.update_sum(checksum::growth_of_lane(Be16::new(1).lane(), 0));",
            with: "if !FAULT { packet.update_sum(checksum::growth_of_lane(Be16::new(1).lane(), 0)); }",
        }],
    },
    Fault {
        name: "QuotedChecksum",
        effect: "The transport checksum of a quoted packet stays as it was.",
        changes: &[Change {
            file: "packet/icmp_error.rs",
            code: "at + size_of::<u16>() > inner.end {",
            with: "at + size_of::<u16>() > inner.end || FAULT {",
        }],
    },
    Fault {
        name: "QuotedPort",
        effect: "The port of a quoted packet stays as it was.",
        changes: &[Change {
            file: "packet/icmp_error.rs",
            code: "from_port != to_port)",
            with: "from_port != to_port && !FAULT)",
        }],
    },
    Fault {
        name: "QuotedAddress",
        effect: "The address of a quoted packet stays as it was.",
        changes: &[Change {
            file: "packet/icmp_error.rs",
            code: "if from != to {",
            with: "if from != to && !FAULT {",
        }],
    },
    Fault {
        name: "ErrorAddress",
        effect: "The address of an ICMP error stays as it was.",
        changes: &[Change {
            file: "packet/icmp_error.rs",
            code: "match outer {",
            with: "match outer.filter(|_side| !FAULT) {",
        }],
    },
    Fault {
        name: "ErrorChecksum",
        effect: "The checksum of an ICMP error stays as it was.",
        changes: &[Change {
            file: "packet/icmp_error.rs",
            code: "packet.update_checksum(ip.transport + Icmp::CHECKSUM, total, 0)?;",
            with: "if !FAULT { packet.update_checksum(ip.transport + Icmp::CHECKSUM, total, 0)?; }",
        }],
    },
    Fault {
        name: "FragmentId",
        effect: "Datagrams are distinguished without their identification.",
        changes: &[Change {
            file: "packet/fragment.rs",
            code: "ip.destination, ip.fragment_id, protocol",
            with: "ip.destination, if FAULT { 0 } else { ip.fragment_id }, protocol",
        }],
    },
    Fault {
        name: "FragmentIgnored",
        effect: "The record of a first fragment is not kept.",
        changes: &[Change {
            file: "packet/fragment.rs",
            code: "ports: &Ports, ring: u32) -> Result<(), DropReason> { if ip.fragment != FragmentKind::First {",
            with: "ports: &Ports, ring: u32) -> Result<(), DropReason> { if ip.fragment != FragmentKind::First || FAULT {",
        }],
    },
    Fault {
        name: "ErrorPiecesIgnored",
        effect: "The flow that an ICMP error in pieces is about is not kept.",
        changes: &[Change {
            file: "packet/fragment.rs",
            code: "fn note_error(ip: &Ip, scratch: ScratchRef, ring: u32) -> Result<(), DropReason> { if ip.fragment != FragmentKind::First {",
            with: "fn note_error(ip: &Ip, scratch: ScratchRef, ring: u32) -> Result<(), DropReason> { if ip.fragment != FragmentKind::First || FAULT {",
        }],
    },
    Fault {
        name: "FragmentForEver",
        effect: "A first fragment is believed for ever.",
        changes: &[Change {
            file: "packet/fragment.rs",
            code: "> clock::seconds(LIFETIME) {",
            with: "> clock::seconds(LIFETIME) && !FAULT {",
        }],
    },
    Fault {
        name: "UdpZero",
        effect: "A UDP datagram without a checksum gets one.",
        changes: &[Change {
            file: "packet/transport.rs",
            code: "(udp::CHECKSUM, true, BPF_F_MARK_MANGLED_0)",
            with: "(udp::CHECKSUM, true, if FAULT { 0 } else { BPF_F_MARK_MANGLED_0 })",
        }],
    },
    Fault {
        name: "Padding",
        effect: "Bytes after the packet count as its header.",
        changes: &[Change {
            file: "packet/transport.rs",
            code: "if ip.transport + length > IP_OFFSET + ip.length {",
            with: "if ip.transport + length > IP_OFFSET + ip.length && !FAULT {",
        }],
    },
    Fault {
        name: "LengthBelieved",
        effect: "The length that an IP header names is believed.",
        changes: &[
            Change {
                file: "packet/family/v4.rs",
                code: "if length > room {",
                with: "if length > room && !FAULT {",
            },
            Change {
                file: "packet/family/v6.rs",
                code: "if length > room {",
                with: "if length > room && !FAULT {",
            },
        ],
    },
    Fault {
        name: "ExtensionLength",
        effect: "IPv6 extension headers are as short as they can be.",
        changes: &[Change {
            file: "packet/family/extension.rs",
            code: "offset += 8 + u32::from(header.length) * 8;",
            with: "if !FAULT { offset += 8 + u32::from(header.length) * 8; } else { offset += 8; }",
        }],
    },
    Fault {
        name: "RefusalIgnored",
        effect: "A refusal counts as any other RST.",
        changes: &[Change {
            file: "packet/transport.rs",
            code: "if is_refusal {",
            with: "if is_refusal && !FAULT {",
        }],
    },
    Fault {
        name: "AcceptanceOpens",
        effect: "A SYN with ACK opens a flow.",
        changes: &[Change {
            file: "packet/transport.rs",
            code: "else if has(tcp::SYN_ACK) {",
            with: "else if has(tcp::SYN_ACK) && !FAULT {",
        }],
    },
    Fault {
        name: "ReorderedPassed",
        effect: "A datagram's first fragment takes another path than the later one that came before it.",
        changes: &[Change {
            file: "packet/fragment.rs",
            code: "ip.fragment == FragmentKind::First &&",
            with: "ip.fragment == FragmentKind::First && !FAULT &&",
        }],
    },
];
