//! Lists of ports as `net.ipv4.ip_local_reserved_ports` has them.

use std::fmt;
use std::str::FromStr;

use datapath_common::config::PortSlice;
use serde::{Deserialize, Serialize};

/// A set of ports: ranges that neither overlap nor touch, in order.
///
/// Serialised as the kernel writes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PortList(Vec<(u16, u16)>);

/// A text is no list of ports.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no list of ports; allowed: ports and ranges with commas (8080,40960-65535)")]
pub struct BadPorts(String);

impl PortList {
    /// The ports of ranges; a range whose end comes before its start has none.
    pub fn new(ranges: impl IntoIterator<Item = (u16, u16)>) -> Self {
        let mut ranges: Vec<_> = ranges.into_iter().filter(|(a, b)| a <= b).collect();
        ranges.sort_unstable();
        let mut list: Vec<(u16, u16)> = Vec::new();
        for (first, last) in ranges {
            match list.last_mut() {
                Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
                Some(_) | None => list.push((first, last)),
            }
        }
        Self(list)
    }

    /// The ports that translation may use.
    #[must_use]
    pub fn of_slices(slices: &[PortSlice]) -> Self {
        let block = datapath_common::abi::PORTS_PER_BLOCK;
        Self::new(slices.iter().filter(|s| s.blocks() > 0).filter_map(|s| {
            let first = u32::from(s.first_block()) * block;
            let last = first + s.ports() - 1;
            Some((u16::try_from(first).ok()?, u16::try_from(last).ok()?))
        }))
    }

    /// The ranges.
    #[must_use]
    pub fn ranges(&self) -> &[(u16, u16)] {
        &self.0
    }

    /// True if it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of ports.
    #[must_use]
    pub fn count(&self) -> u32 {
        let size = |(first, last): &(u16, u16)| u32::from(*last) - u32::from(*first) + 1;
        self.0.iter().map(size).sum()
    }

    /// Both sets together.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self::new(self.0.iter().chain(&other.0).copied())
    }

    /// The ports of this set that are not in the other.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        let mut left = Vec::new();
        for &(first, last) in &self.0 {
            let mut next = Some(first);
            for &(from, to) in &other.0 {
                let Some(start) = next.filter(|start| to >= *start && from <= last) else {
                    continue;
                };
                if from > start {
                    left.push((start, from - 1));
                }
                next = to.checked_add(1);
            }
            left.extend(
                next.filter(|start| *start <= last)
                    .map(|start| (start, last)),
            );
        }
        Self(left)
    }

    /// The ports of both sets.
    #[must_use]
    pub fn common(&self, other: &Self) -> Self {
        self.minus(&self.minus(other))
    }

    /// True if every port of the other set is in this one.
    #[must_use]
    pub fn contains(&self, other: &Self) -> bool {
        other.minus(self).is_empty()
    }
}

impl TryFrom<String> for PortList {
    type Error = BadPorts;

    fn try_from(text: String) -> Result<Self, BadPorts> {
        text.parse()
    }
}

impl From<PortList> for String {
    fn from(list: PortList) -> Self {
        list.to_string()
    }
}

impl FromStr for PortList {
    type Err = BadPorts;

    fn from_str(text: &str) -> Result<Self, BadPorts> {
        let bad = || BadPorts(text.to_owned());
        let range = |part: &str| -> Option<(u16, u16)> {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some((first.trim().parse().ok()?, last.trim().parse().ok()?))
        };
        let parts = text.trim().split(',').filter(|part| !part.is_empty());
        let ranges: Option<Vec<_>> = parts.map(range).collect();
        Ok(Self::new(ranges.ok_or_else(bad)?))
    }
}

impl fmt::Display for PortList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (first, last)) in self.0.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            if first == last {
                write!(f, "{comma}{first}")?;
            } else {
                write!(f, "{comma}{first}-{last}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn list(text: &str) -> PortList {
        text.parse().unwrap()
    }

    #[test]
    fn lists_are_read_and_written_as_the_kernel_does() {
        for (text, shown) in [
            ("", ""),
            ("\n", ""),
            ("8080", "8080"),
            ("8080,40960-65535\n", "8080,40960-65535"),
            ("5-7,6-9,10", "5-10"),
            ("65535,0", "0,65535"),
        ] {
            assert_eq!(list(text).to_string(), shown, "{text:?}");
        }
        for text in ["x", "1-", "70000", "-", "1 2"] {
            assert!(text.parse::<PortList>().is_err(), "{text}");
        }
    }

    #[test]
    fn slices_become_ranges() {
        let slices = [PortSlice::DEFAULT, PortSlice::NONE];
        assert_eq!(PortList::of_slices(&slices).to_string(), "40960-65535");
        assert_eq!(PortList::of_slices(&slices).count(), 24_576);
    }

    fn ports() -> impl Strategy<Value = PortList> {
        let end = prop_oneof![0..40_u16, 65_500..=u16::MAX];
        prop::collection::vec((end.clone(), end), 0..5).prop_map(PortList::new)
    }

    fn all(list: &PortList) -> BTreeSet<u16> {
        list.ranges().iter().flat_map(|(a, b)| *a..=*b).collect()
    }

    proptest! {
        #[test]
        fn sets_behave_as_sets(a in ports(), b in ports()) {
            let (x, y) = (all(&a), all(&b));
            prop_assert_eq!(a.count() as usize, x.len());
            prop_assert_eq!(all(&a.union(&b)), &x | &y);
            prop_assert_eq!(all(&a.minus(&b)), &x - &y);
            prop_assert_eq!(all(&a.common(&b)), &x & &y);
            prop_assert_eq!(a.contains(&b), y.is_subset(&x));
            prop_assert_eq!(list(&a.to_string()), a);
        }
    }
}
