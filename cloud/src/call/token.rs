//! Client tokens: EC2 answers a repeated creation with the ENI that it created.

use std::fmt::Write as _;

use jiff::Timestamp;
use sha1::{Digest as _, Sha1};

use crate::{EniId, InstanceId};

/// The life of a token, in seconds.
const BUCKET: i64 = 600;

/// The parts of a token. The parameters of the call are no part of it: two leaders that see one
/// state create one ENI, whatever demand each of them saw.
#[derive(Clone, Copy, Debug)]
pub struct Seed<'a> {
    /// The cluster.
    pub cluster: &'a str,
    /// The instance.
    pub instance: &'a InstanceId,
    /// Ids of the ENIs that the instance is known to have, in order.
    pub known: &'a [EniId],
    /// The time.
    pub now: Timestamp,
    /// Grows when a token is used up.
    pub salt: u32,
}

impl Seed<'_> {
    /// The token: hexadecimal, within the 64 characters of EC2.
    #[must_use]
    pub fn token(&self) -> String {
        let mut hash = Sha1::new();
        let mut feed = |text: &str| {
            hash.update(text.len().to_be_bytes());
            hash.update(text);
        };
        feed(self.cluster);
        feed(self.instance.as_str());
        for id in self.known {
            feed(id.as_str());
        }
        hash.update(self.now.as_second().div_euclid(BUCKET).to_be_bytes());
        hash.update(self.salt.to_be_bytes());
        let mut token = String::with_capacity(40);
        for byte in hash.finalize() {
            // Writing into a string never fails.
            let _infallible = write!(token, "{byte:02x}");
        }
        token
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_but_the_moment_within_ten_minutes_changes_it() {
        let (one, other) = (InstanceId::from("i-1"), InstanceId::from("i-2"));
        let known = [EniId::from("eni-1"), EniId::from("eni-2")];
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let seed = Seed {
            cluster: "blue",
            instance: &one,
            known: &known,
            now: at("2026-01-31T12:00:00Z"),
            salt: 0,
        };
        let same = Seed {
            now: at("2026-01-31T12:09:59Z"),
            ..seed
        };
        assert_eq!(seed.token(), same.token());
        assert_eq!(seed.token().len(), 40);
        let others = [
            Seed {
                cluster: "bluei-1",
                ..seed
            },
            Seed {
                instance: &other,
                ..seed
            },
            Seed {
                known: &known[..1],
                ..seed
            },
            Seed {
                now: at("2026-01-31T12:10:00Z"),
                ..seed
            },
            Seed { salt: 1, ..seed },
        ];
        for (n, other) in others.iter().enumerate() {
            assert_ne!(seed.token(), other.token(), "{n}");
        }
    }
}
