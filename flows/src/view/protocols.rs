//! Names of protocols.

/// The protocols that have flows, with their numbers
/// (<https://www.iana.org/assignments/protocol-numbers>).
const NAMES: [(u8, &str); 5] = [
    (1, "icmp"),
    (6, "tcp"),
    (17, "udp"),
    (58, "icmpv6"),
    (132, "sctp"),
];

/// A protocol's name, or its number.
#[must_use]
pub fn name(number: u8) -> String {
    let found = NAMES.iter().find(|(of, _)| *of == number);
    found.map_or_else(|| number.to_string(), |(_, name)| (*name).to_owned())
}

/// The protocol that a name or a number means.
#[must_use]
pub fn number(text: &str) -> Option<u8> {
    let found = NAMES.iter().find(|(_, name)| *name == text);
    found.map_or_else(|| text.parse().ok(), |(number, _)| Some(*number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_come_back() {
        for protocol in 0..=u8::MAX {
            assert_eq!(number(&name(protocol)), Some(protocol));
            assert_eq!(number(&protocol.to_string()), Some(protocol));
        }
        assert_eq!(number("TCP"), None);
        assert_eq!(number("256"), None);
    }
}
